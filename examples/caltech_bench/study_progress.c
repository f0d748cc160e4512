/* Lines for people: one live line on a terminal, plain lines elsewhere; and Ctrl-C. */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define PLAIN_SECONDS 30.0
#define LIVE_SECONDS  0.1

static volatile sig_atomic_t interrupted;
static double last_line; /* when a live line was last shown */
static int is_live;      /* the cursor stands in a live line */

static void on_interrupt(int signal_number)
{
    interrupted = 1;
    (void)signal(signal_number, SIG_DFL); /* the second Ctrl-C ends the program at once */
}

void study_catch_interrupt(void)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
}

int study_interrupted(void) { return interrupted != 0; }

double study_now(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int width(void)
{
    struct winsize size;

    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

void study_live(const char *fmt, ...)
{
    const int is_terminal = isatty(STDOUT_FILENO);
    const double now = study_now();
    char text[512];
    va_list args;

    if (now - last_line < (is_terminal ? LIVE_SECONDS : PLAIN_SECONDS))
        return;
    if (last_line == 0.0 && !is_terminal) { /* the first interval counts from the first call */
        last_line = now;
        return;
    }
    last_line = now;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!is_terminal) {
        printf("%s\n", text);
    } else {
        const int most = width() - 1;

        printf("\r\033[K%.*s", most < (int)sizeof text ? most : (int)sizeof text, text);
        is_live = 1;
    }
    (void)fflush(stdout);
}

void study_line(const char *fmt, ...)
{
    va_list args;

    if (is_live)
        printf("\r\033[K");
    is_live = 0;
    va_start(args, fmt);
    (void)vprintf(fmt, args);
    va_end(args);
    printf("\n");
    (void)fflush(stdout);
}

void study_error(const char *fmt, ...)
{
    va_list args;

    if (is_live)
        printf("\r\033[K");
    is_live = 0;
    (void)fflush(stdout);
    fprintf(stderr, "caltech_bench: ");
    va_start(args, fmt);
    (void)vfprintf(stderr, fmt, args);
    va_end(args);
    fprintf(stderr, "\n");
}

const char *study_duration(char *buf, size_t size, double seconds)
{
    if (seconds < 0.0)
        (void)snprintf(buf, size, "--");
    else if (seconds < 60.0)
        (void)snprintf(buf, size, "%.0f s", seconds);
    else if (seconds < 3600.0)
        (void)snprintf(buf, size, "%d min %02d s", (int)seconds / 60, (int)seconds % 60);
    else
        (void)snprintf(buf, size, "%d h %02d min", (int)seconds / 3600, (int)seconds / 60 % 60);
    return buf;
}
