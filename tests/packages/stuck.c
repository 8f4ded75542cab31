/* Stops one thread of a process, as a defect would, until the process is killed: stuck THREAD */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    pid_t thread = atoi(argv[1]);
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) || ptrace(PTRACE_INTERRUPT, thread, 0, 0)) {
        perror("ptrace");
        return 1;
    }
    /* A killed process has not ended before its tracer has waited for the thread. */
    int status;
    do {
        if (waitpid(thread, &status, __WALL) < 0) return 1;
    } while (WIFSTOPPED(status));
    return 0;
}
