#include "cli/signals.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/err.h"
#include "cli/exit.h"
#include "cpu/mapped.h"

/* Handlers write these, and threads of downloads and answers read them. */
static atomic_int n_interrupts;
static atomic_int interrupted_by; /* the first signal since the program began; 0: none */
static atomic_int impatient = 1;
static atomic_int held;

static atomic_int n_changes;
static atomic_int woken;  /* signals_wake was called */
static atomic_int ending; /* the signal that asks the program to end; 0: none */
/* An eventfd that handlers write and signals_wait polls. Without it, a signal that arrives between the test
 * of the flags above and the poll would be seen only at the next key. -1: SIGINT is not caught. */
static int wake_fd = -1;

static void wake(void)
{
    int saved = errno;
    /* It fails only if the counter is full, and then it wakes the poll all the same. */
    if (write(wake_fd, &(uint64_t){1}, sizeof(uint64_t)) < 0)
        errno = saved;
}

static void on_interrupt(int signal_number)
{
    bool first = !n_interrupts;
    if (!first && impatient && signal_number == SIGINT)
        _exit(EXIT_INTERRUPTED);
    if (!interrupted_by)
        interrupted_by = signal_number;
    n_interrupts = 1;
    wake();
    static const char notice[] = "\nmoeflux: ending after the current request; Ctrl-C ends at once\n";
    int saved = errno;
    if (held && first && write(STDERR_FILENO, notice, sizeof notice - 1) < 0)
        errno = saved;
}

void signals_ignore_failed_writes(void)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGPIPE, &ignore, NULL);
    sigaction(SIGXFSZ, &ignore, NULL);
}

/* A fault anywhere but in a mapped model file ends the program as it would without the handler. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    int saved = errno;
    (void)context;
    if (info->si_code != BUS_ADRERR || !mapped_repair(info->si_addr)) {
        struct sigaction plain = {.sa_handler = SIG_DFL};
        sigaction(signal_number, &plain, NULL);
    }
    errno = saved;
}

void signals_catch_bus_errors(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

static void catch_signal(int number, void (*handler)(int))
{
    /* SA_RESTART: what is being written to the terminal is not lost. */
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL);
}

int signals_catch_interrupt(struct moeflux_err *e)
{
    if (wake_fd < 0 && (wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        return err_errno(e, ERR_IO, "eventfd");
    catch_signal(SIGINT, on_interrupt);
    return 0;
}

void signals_catch_termination(void)
{
    static const int numbers[] = {SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction before;
        sigaction(numbers[i], NULL, &before);
        if (before.sa_handler != SIG_IGN)
            catch_signal(numbers[i], on_interrupt);
    }
}

int signals_status(void)
{
    return interrupted_by ? 128 + interrupted_by : EXIT_INTERRUPTED;
}

static void on_change(int signal_number)
{
    (void)signal_number;
    n_changes = 1;
    wake();
}

static void on_end(int signal_number)
{
    ending = signal_number;
    wake();
}

void signals_catch_editing(bool on)
{
    static const struct {
        int number;
        void (*handler)(int);
    } caught[] = {
        {SIGWINCH, on_change}, {SIGCONT, on_change}, {SIGTERM, on_end}, {SIGHUP, on_end}, {SIGQUIT, on_end}};
    enum { N = sizeof caught / sizeof *caught };
    static struct sigaction before[N];
    n_changes = 0;
    for (int i = 0; i < N; i++) {
        if (on)
            sigaction(caught[i].number, NULL, &before[i]);
        /* Signals that were ignored (nohup) still are. */
        if (on && before[i].sa_handler != SIG_IGN)
            catch_signal(caught[i].number, caught[i].handler);
        else
            sigaction(caught[i].number, &before[i], NULL);
    }
    if (!on && ending)
        raise(ending);
}

void signals_wake(void)
{
    woken = 1;
    wake();
}

enum signals_event signals_wait(int fd)
{
    struct pollfd any[] = {{.fd = fd, .events = POLLIN}, {.fd = wake_fd, .events = POLLIN}};
    for (;;) {
        if (ending)
            return SIGNALS_END;
        if (n_interrupts)
            return SIGNALS_INTERRUPT;
        if (atomic_exchange(&woken, 0))
            return SIGNALS_WOKEN;
        if (n_changes) {
            n_changes = 0;
            return SIGNALS_REDRAW;
        }
        int n = poll(any, 2, -1);
        if (n < 0 && errno == EINTR)
            continue;
        /* Any other fault of fd is left to its reader. */
        uint64_t n_wakes;
        if (n < 0 || any[1].revents == 0 || read(wake_fd, &n_wakes, sizeof n_wakes) < 0)
            return SIGNALS_READY;
    }
}

bool signals_interrupted(void)
{
    return n_interrupts != 0 && !held;
}

bool signals_asked(void)
{
    return n_interrupts != 0;
}

void signals_hold(bool on)
{
    held = on;
}

void signals_clear(void)
{
    n_interrupts = 0;
}

void signals_set_impatient(bool on)
{
    impatient = on;
}
