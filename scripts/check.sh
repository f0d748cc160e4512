#!/bin/sh
# check.sh LOGDIR SUITE...: runs suites one after the other and goes on after a failure.
#
# A suite is what follows "make": "check-unit", "CONFIG=asan check-unit". It failed when make did, and was
# skipped when it said so in a line "SKIPPED: reason". Output goes to LOGDIR; a failed suite's end is shown.
set -u

logs=$1
shift
passed=0
failed=0
skipped=0
failures=
mkdir -p "$logs" || exit 1
start=$(date +%s)
trap 'exit 130' INT TERM

for suite in "$@"; do
    log=$logs/$(echo "$suite" | tr -c 'A-Za-z0-9\n' _).log
    begin=$(date +%s.%N)
    # shellcheck disable=SC2086 -- a suite is several words
    ${MAKE:-make} $suite >"$log" 2>&1
    rc=$?
    seconds=$(echo "$begin $(date +%s.%N)" | awk '{ printf "%.1f", $2 - $1 }')
    if [ $rc -ne 0 ]; then
        failed=$((failed + 1))
        failures="$failures
    make $suite"
        printf 'FAILED   %-44s %6s s   %s\n' "$suite" "$seconds" "$log"
        tail -n 25 "$log" | sed 's/^/    /'
    elif reason=$(grep -m 1 '^SKIPPED: ' "$log"); then
        skipped=$((skipped + 1))
        printf 'skipped  %-44s %6s s   %s\n' "$suite" "$seconds" "${reason#SKIPPED: }"
    else
        passed=$((passed + 1))
        printf 'ok       %-44s %6s s\n' "$suite" "$seconds"
        grep -m 5 ': warning: ' "$log" | sed 's/^/    /'
    fi
done

printf '%s in %d s\n' "$(basename "$0" .sh)" $(($(date +%s) - start))
if [ -n "$failures" ]; then
    echo "Repeat what failed with$failures"
fi
if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed -eq 0 ]
