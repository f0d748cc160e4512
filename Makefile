# qnn: the only build file. `make help` lists what it can do; CONTRIBUTING.md says how it is laid out.
#
# CONFIG=release|debug|asan|tsan  each in its own folder, build/$(CONFIG)
# CUDA=auto|0|1                   auto: 1 where nvcc and cuda/*.c are found
# ARCH=...                        other than x86_64: the reference kernels only
# CFLAGS CPPFLAGS LDFLAGS         are appended to ours; CC may be gcc or clang; V=1 prints whole commands
# PREFIX DESTDIR                  for install and uninstall
# ARGS                            options of caltech_bench, for run

VERSION   := 0.1.0
SOVERSION := 0
PREFIX    ?= /usr/local
BUILD_DIR ?= build
CONFIG    ?= release
CUDA      ?= auto
ARCH      ?= $(shell uname -m)
BUILD     := $(BUILD_DIR)/$(CONFIG)
CXX       ?= c++
PYTHON    ?= python3

ifeq ($(filter $(CONFIG),release debug asan tsan),)
$(error CONFIG is "$(CONFIG)": expected release, debug, asan or tsan)
endif
ifeq ($(CUDA),auto)
override CUDA := $(if $(wildcard cuda/*.c),$(if $(shell command -v nvcc),1,0),0)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
MAKEFLAGS += --no-print-directory --no-builtin-rules
# All processors; a -j of the caller's wins, and a make under a make shares what its parent has.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 2)
endif
Q := $(if $(V),,@)
say = $(if $(V),,@echo "  $1  $2")

# ---- flags ---------------------------------------------------------------------------------------------

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wundef -Wvla -Wpointer-arith \
        -Wcast-qual -Wwrite-strings
OPT_release := -O2 -g -DNDEBUG
OPT_debug   := -Og -g3
OPT_asan    := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
OPT_tsan    := -O1 -g -fsanitize=thread
# The loops of the reference kernels are what a compiler vectorises.
OPT_KERNELS := $(if $(filter release,$(CONFIG)),-O3,-O2) -fno-math-errno

# -ffp-contract=off: results must not depend on whether the target has FMA. -fPIC: one set of objects for
# the archive and the shared library.
QCFLAGS   := -std=c11 $(WARN) -ffp-contract=off -fvisibility=hidden -fPIC $(OPT_$(CONFIG))
QCPPFLAGS := -Iinclude -I. -DQNN_WITH_CUDA=$(CUDA)
QLDFLAGS  := $(filter -fsanitize=%,$(OPT_$(CONFIG)))
LDLIBS    := -ljansson -lm -lpthread

# One folder per instruction set; its name is the suffix of every symbol in it.
ISA_CFLAGS_ref        :=
ISA_CFLAGS_avx2       := -mavx2 -mfma -mf16c -mbmi2
ISA_CFLAGS_avx512     := $(ISA_CFLAGS_avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl
ISA_CFLAGS_avx512vnni := $(ISA_CFLAGS_avx512) -mavx512vnni
ISAS      := ref $(if $(filter x86_64,$(ARCH)),avx2 avx512 avx512vnni)
QCPPFLAGS += $(foreach i,$(filter-out ref,$(ISAS)),-DQNN_BUILD_$(shell echo $i | tr a-z A-Z))

# ---- sources and what they become -----------------------------------------------------------------------

OBJ     := $(BUILD)/obj
comma    := ,
objects  = $(patsubst %.c,$(OBJ)/%.o,$1)
LIB_SRC := $(wildcard lib/*.c lib/*/*.c kernels/*.c) $(foreach i,$(ISAS),$(wildcard kernels/$i/*.c))
ifeq ($(CUDA),1)
CUDA_PATH ?= /usr/local/cuda
LIB_SRC   += $(wildcard cuda/*.c)
QCPPFLAGS += -I$(CUDA_PATH)/include
LDLIBS    += -L$(CUDA_PATH)/lib64 -lcudart_static -lpthread -ldl -lrt
endif
LIB_OBJ := $(call objects,$(LIB_SRC))
LIB     := $(BUILD)/libqnn.a
SHARED  := $(BUILD)/libqnn.so.$(VERSION)

FUZZERS  := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
EXAMPLES := $(addprefix $(BUILD)/examples/,$(patsubst examples/%.c,%,$(wildcard examples/*.c)) \
            $(if $(wildcard examples/caltech_bench/*.c),caltech_bench))
TESTS    := $(addprefix $(BUILD)/tests/,$(foreach t,unit kcheck grad golden oom,$(if $(wildcard tests/$t/*.c),$t)) \
            $(FUZZERS))
BENCHES  := $(patsubst bench/%.c,$(BUILD)/bench/%,$(wildcard bench/*.c))

program = $(call objects,$(wildcard $1)) $(call objects,$(wildcard tests/common/*.c)) $(LIB)
PROGRAM_OBJ := $(call objects,$(wildcard tests/common/*.c $(foreach t,unit kcheck grad golden oom fuzz,tests/$t/*.c) \
               examples/*.c examples/caltech_bench/*.c bench/*.c))

all: lib examples tests

## lib: build libqnn.a and the shared library
lib: $(LIB) $(SHARED)
$(LIB): $(LIB_OBJ) $(BUILD)/.sources
	$(call say,AR,$@)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJ)
$(SHARED): $(LIB_OBJ) $(BUILD)/.sources
	$(call say,LD,$@)
	$(Q)$(CC) -shared -Wl,-soname,libqnn.so.$(SOVERSION) $(QLDFLAGS) $(LDFLAGS) $(LIB_OBJ) $(LDLIBS) -o $@

$(OBJ)/kernels/%.o: OPT_FOLDER = $(OPT_KERNELS)
$(foreach i,$(ISAS),$(eval $(OBJ)/kernels/$i/%.o: ISA_CFLAGS = $(ISA_CFLAGS_$i)))
$(OBJ)/%.o: %.c $(BUILD)/.flags
	$(call say,CC,$<)
	@mkdir -p $(@D)
	$(Q)$(CC) $(QCPPFLAGS) $(CPPFLAGS) $(QCFLAGS) $(OPT_FOLDER) $(CFLAGS) $(ISA_CFLAGS) -MMD -MP -c $< -o $@

# Rewritten only when the flags, or the list of sources, really changed: every object depends on the first, the
# libraries on the second.
$(BUILD)/.flags: NOW = $(CC) $(QCPPFLAGS) $(CPPFLAGS) $(QCFLAGS) $(OPT_KERNELS) $(CFLAGS) $(LDFLAGS) \
                       $(foreach i,$(ISAS),$(ISA_CFLAGS_$i))
$(BUILD)/.sources: NOW = $(LIB_SRC)
QUOTED = '$(subst ','\'',$(NOW))'
$(BUILD)/.flags $(BUILD)/.sources: FORCE
	@mkdir -p $(@D); echo $(QUOTED) | cmp -s - $@ || echo $(QUOTED) > $@

link = $(Q)mkdir -p $(@D) && $(CC) $(QLDFLAGS) $(LDFLAGS) $1 $(filter %.o %.a,$^) $2 $(LDLIBS) -o $@

## examples: build quickstart, infer and caltech_bench
examples: $(EXAMPLES)
$(BUILD)/examples/caltech_bench: $(call objects,$(wildcard examples/caltech_bench/*.c)) $(LIB)
	$(call say,LD,$@)
	$(call link)
$(BUILD)/examples/%: $(OBJ)/examples/%.o $(LIB)
	$(call say,LD,$@)
	$(call link)

## tests: build the test programs
tests: $(TESTS)
$(BUILD)/tests/unit: $(call program,tests/unit/*.c)
	$(call say,LD,$@)
	$(call link,,-lcheck -lsubunit -lrt)
$(BUILD)/tests/kcheck: $(call program,tests/kcheck/*.c)
	$(call say,LD,$@)
	$(call link)
$(BUILD)/tests/grad: $(call program,tests/grad/*.c)
	$(call say,LD,$@)
	$(call link)
$(BUILD)/tests/golden: $(call program,tests/golden/*.c)
	$(call say,LD,$@)
	$(call link)
# The sweep fails every malloc that is linked in, not only those of the context's hooks.
$(BUILD)/tests/oom: $(call program,tests/oom/*.c)
	$(call say,LD,$@)
	$(call link,-Wl$(comma)--wrap=malloc$(comma)--wrap=calloc$(comma)--wrap=realloc)
$(addprefix $(BUILD)/tests/,$(FUZZERS)): $(BUILD)/tests/%: $(OBJ)/tests/fuzz/%.o $(call program,tests/fuzz/regression_main.c)
	$(call say,LD,$@)
	$(call link)

## bench: build the benchmarks
bench: $(BENCHES)
	$(if $(BENCHES),,@echo "bench/ holds no program")
$(BUILD)/bench/%: $(OBJ)/bench/%.o $(LIB)
	$(call say,LD,$@)
	$(call link)

# ---- what people type ---------------------------------------------------------------------------------------

## help: list the targets
help:
	@sed -n 's/^## \([a-z-]*\): /  \1	/p' $(firstword $(MAKEFILE_LIST)) | expand -t 24

## setup: install the Debian packages that are missing (as root), or say which
setup:
	@scripts/setup.sh full

## run: install what is missing, build, run the study; ARGS="..." gives it options
run:
	@scripts/setup.sh run
	@+$(MAKE) examples
	@$(BUILD)/examples/caltech_bench $(ARGS)

# What check runs, in this order; each is a target and can be run alone. The sanitizers' builds run what runs our
# code; a debug build's assertions import what check-symbols forbids.
RUN_CHECKS     := check-unit check-kernels check-grad check-golden check-oom check-fuzz-corpus check-study
CHECKS_release := check-lint check-headers check-symbols $(RUN_CHECKS) check-consumer check-readme check-fetch \
                  check-safetensors
CHECKS_debug   := $(filter-out check-symbols,$(CHECKS_release))
CHECKS_asan    := $(RUN_CHECKS)
CHECKS_tsan    := check-unit
# What an instruction set can change the outcome of.
ISA_CHECKS     := check-unit check-grad check-golden check-fuzz-corpus
RUN_AS := $(if $(QNN_ISA),scripts/with-isa.sh $(QNN_ISA))

## check: install what is missing, build, run every test suite
check:
	@scripts/setup.sh check
	@+MAKE="$(MAKE)" scripts/check.sh $(BUILD)/logs "lib examples tests" $(CHECKS_$(CONFIG))

## check-full: every suite on every ISA, sanitizers, valgrind, long kernel checks, random inputs
check-full:
	@scripts/setup.sh full
	@+MAKE="$(MAKE)" scripts/check.sh $(BUILD)/logs "lib examples tests" \
	    $(foreach i,$(ISAS),$(foreach c,$(ISA_CHECKS),"$c QNN_ISA=$i")) \
	    "check-kernels LONG=1" check-oom-full check-fuzz check-valgrind \
	    $(foreach s,asan tsan,"CONFIG=$s lib examples tests" $(foreach c,$(CHECKS_$s),"CONFIG=$s $c")) \
	    "ARCH=none BUILD_DIR=$(BUILD_DIR)/no-arch check-unit check-golden"

## check-unit: unit tests
check-unit: $(BUILD)/tests/unit
	@CK_FORK=$(if $(filter tsan,$(CONFIG)),no,yes) $(RUN_AS) $<
## check-kernels: kernels against naive loops on every ISA; LONG=1 for more
check-kernels: $(BUILD)/tests/kcheck
	@$< $(if $(LONG),--long)
## check-grad: gradients against finite differences
check-grad: $(BUILD)/tests/grad
	@$(RUN_AS) $<
## check-golden: values against PyTorch's
check-golden: $(BUILD)/tests/golden
	@$(RUN_AS) $<
## check-oom: every allocation failing in turn
check-oom: $(BUILD)/tests/oom
	@$(RUN_AS) $<
check-oom-full: $(BUILD)/tests/oom
	@$< --full
## check-fuzz-corpus: replay the inputs that once broke something
check-fuzz-corpus: $(addprefix $(BUILD)/tests/,$(FUZZERS))
	@test -n "$(FUZZERS)"
	@for f in $(FUZZERS); do $(RUN_AS) $(BUILD)/tests/$$f tests/fuzz/corpus/$${f#fuzz_} || exit 1; done
# Random changes to the corpus; the seed is printed and can be given.
SEED   ?= 1
MUTATE ?= 20000
check-fuzz: $(addprefix $(BUILD)/tests/,$(FUZZERS))
	@for f in $(FUZZERS); do $(BUILD)/tests/$$f --mutate $(MUTATE) --seed $(SEED) \
	    --save $(BUILD)/crash-$$f tests/fuzz/corpus/$${f#fuzz_} || exit 1; done
# The suites whose arithmetic is checked to the last bit elsewhere would take most of an hour here.
VALGRIND_SUITES := core ops quant image dataset metrics train file
check-valgrind: $(BUILD)/tests/unit
	@for s in $(VALGRIND_SUITES); do CK_RUN_SUITE=$$s CK_FORK=no QNN_ISA=ref CK_DEFAULT_TIMEOUT=0 valgrind -q \
	    --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite $< || exit 1; done
## check-headers: every public header alone, in C99 and C++
check-headers:
	@CC="$(CC)" CXX="$(CXX)" tests/headers/headers.sh
## check-lint: who includes what, names, characters, lengths, words
check-lint:
	@rc=0; for f in includes ascii names lines words; do tests/lint/$$f.sh || rc=1; done; exit $$rc
## check-symbols: names, imports and data of the library
check-symbols: $(LIB) $(SHARED)
	@tests/lint/symbols.sh $(abspath $^)
## check-consumer: programs in C and C++ built from an installed copy
check-consumer: $(LIB) $(SHARED)
	@MAKE="$(MAKE)" CC="$(CC)" CXX="$(CXX)" VERSION=$(VERSION) tests/consumer/run.sh $(BUILD)/consumer
## check-readme: the programs in README.md, as printed
check-readme: $(LIB) $(SHARED)
	@MAKE="$(MAKE)" CC="$(CC)" tests/lint/readme.sh $(BUILD)/readme
## check-study: the whole study on a few images
check-study: $(BUILD)/examples/caltech_bench
	@$(RUN_AS) tests/study/run.sh $< $(BUILD)/study
## check-fetch: the download script against a server on this machine
check-fetch:
	@PYTHON="$(PYTHON)" tests/fetch/run.sh $(BUILD)/fetch
## check-safetensors: a saved model opened by Python's safetensors
check-safetensors: $(BUILD)/examples/quickstart
	@PYTHON="$(PYTHON)" tests/safetensors/run.sh $< $(BUILD)/safetensors $(BUILD_DIR)/venv-safetensors

## fetch-data: download Caltech-101 into data/caltech101
fetch-data:
	@scripts/setup.sh fetch
	@scripts/fetch-caltech101.sh

## format: clang-format on the files changed since the last commit
format:
	@git diff --name-only --diff-filter=d HEAD -- '*.c' '*.h' | xargs -r clang-format -i

# ---- install ------------------------------------------------------------------------------------------------

INCLUDEDIR := $(DESTDIR)$(PREFIX)/include
LIBDIR     := $(DESTDIR)$(PREFIX)/lib
HEADERS    := $(wildcard include/qnn/*.h)

## install: headers, libraries and qnn.pc under DESTDIR/PREFIX
install: $(LIB) $(SHARED)
	@mkdir -p $(INCLUDEDIR)/qnn $(LIBDIR)/pkgconfig
	install -m 644 include/qnn.h $(INCLUDEDIR)
	install -m 644 $(HEADERS) $(INCLUDEDIR)/qnn
	install -m 644 $(LIB) $(LIBDIR)
	install -m 755 $(SHARED) $(LIBDIR)
	ln -sf libqnn.so.$(VERSION) $(LIBDIR)/libqnn.so.$(SOVERSION)
	ln -sf libqnn.so.$(SOVERSION) $(LIBDIR)/libqnn.so
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' \
	    'Name: qnn' 'Description: trains, quantises and runs small convolutional networks' \
	    'Version: $(VERSION)' 'Cflags: -I$${includedir}' 'Libs: -L$${libdir} -lqnn' \
	    'Libs.private: -lm -lpthread' 'Requires.private: jansson' > $(LIBDIR)/pkgconfig/qnn.pc

## uninstall: remove what install put there
uninstall:
	rm -f $(INCLUDEDIR)/qnn.h $(patsubst include/%,$(INCLUDEDIR)/%,$(HEADERS)) $(LIBDIR)/libqnn.a \
	    $(addprefix $(LIBDIR)/libqnn.so,.$(VERSION) .$(SOVERSION)) $(LIBDIR)/libqnn.so $(LIBDIR)/pkgconfig/qnn.pc
	@rmdir $(INCLUDEDIR)/qnn 2>/dev/null || true

## clean: remove everything that was built
clean:
	rm -rf $(BUILD_DIR)

FORCE:
.PHONY: FORCE all lib examples tests bench help setup run check check-full fetch-data format install uninstall clean \
        $(CHECKS_release) check-oom-full check-fuzz check-valgrind
.SECONDARY:
-include $(patsubst %.o,%.d,$(LIB_OBJ) $(PROGRAM_OBJ))
