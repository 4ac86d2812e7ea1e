/* Preloaded into the program by the tests, with FORK_SERVER the number of a socket: the program stops before main(), and
 * each request continues from there in a fork. LibTorch registers its operators, a quarter of a second, once instead of at
 * each start. As in AFL (Zalewski, "Fuzzing random programs without execve()", 2014); fork_server.py is the other end.
 *
 * A message of one byte carries four descriptors: standard input, output and errors, and the request's own socket. Through
 * that socket comes the length of the strings, the number of arguments, and the strings, each ended by 0: the folder, the
 * arguments, the environment. The process id goes back, and later its status, both as int. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { kNumDescriptors = 4 };

typedef int Main(int, char **, char **);
static Main *real_main;

static int receive(int channel, int *descriptors) {
  char byte;
  union {
    struct cmsghdr header;
    char space[CMSG_SPACE(kNumDescriptors * sizeof(int))];
  } control;
  struct iovec data = {&byte, 1};
  struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
  if (recvmsg(channel, &message, 0) != 1 || message.msg_controllen < sizeof(control)) return 0;
  memcpy(descriptors, CMSG_DATA(CMSG_FIRSTHDR(&message)), kNumDescriptors * sizeof(int));
  return 1;
}

static void read_all(int from, void *to, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t count = read(from, (char *)to + done, size - done);
    if (count <= 0) _exit(1);
    done += (size_t)count;
  }
}

static void write_int(int to, int value) {
  if (write(to, &value, sizeof(value)) != sizeof(value)) _exit(1);
}

/* Runs after the handlers that the program registered and in place of its libraries': unregistering LibTorch's operators
 * takes a tenth of a second. */
static void leave(int status, void *unused) {
  (void)unused;
  fflush(NULL);
  _exit(status);
}

/* The parent waits to report how the program ends; the child is the program. */
static int run(int *descriptors) {
  const int request = descriptors[3];
  uint32_t sizes[2];
  read_all(request, sizes, sizeof(sizes));
  char *strings = malloc(sizes[0] + 1);
  read_all(request, strings, sizes[0]);
  signal(SIGCHLD, SIG_DFL);
  const pid_t child = fork();
  if (child < 0) _exit(1);
  if (child != 0) {
    for (int i = 0; i < 3; ++i) {
      close(i);
      close(descriptors[i]);
    }
    write_int(request, child);
    int status = 0;
    waitpid(child, &status, 0);
    write_int(request, status);
    _exit(0);
  }
  close(request);
  for (int i = 0; i < 3; ++i) {
    dup2(descriptors[i], i);
    close(descriptors[i]);
  }
  size_t num_strings = 0;
  for (uint32_t i = 0; i < sizes[0]; ++i) num_strings += strings[i] == 0;
  char **words = calloc(num_strings + 2, sizeof(char *));
  const char *folder = strings;
  char *next = strings + strlen(strings) + 1;
  const size_t num_words = sizes[1];
  for (size_t i = 1; i < num_strings; ++i, next += strlen(next) + 1) words[i - 1 + (i > num_words)] = next;
  if (chdir(folder) != 0) _exit(127);
  environ = words + num_words + 1;
  on_exit(leave, NULL);
  return real_main((int)num_words, words, environ);
}

static int serve(int num_words, char **words, char **environment) {
  const char *number = getenv("FORK_SERVER");
  if (number == NULL) return real_main(num_words, words, environment);
  const int channel = atoi(number);
  signal(SIGCHLD, SIG_IGN);
  write_int(channel, 0);
  for (int descriptors[kNumDescriptors]; receive(channel, descriptors);) {
    if (fork() == 0) {
      close(channel);
      return run(descriptors);
    }
    for (int i = 0; i < kNumDescriptors; ++i) close(descriptors[i]);
  }
  _exit(0);
}

int __libc_start_main(Main *main, int num_words, char **words, void (*init)(void), void (*fini)(void),
                      void (*ld_fini)(void), void *stack) {
  real_main = main;
  int (*start)(Main *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *) =
      (__typeof__(start))dlsym(RTLD_NEXT, "__libc_start_main");
  return start(serve, num_words, words, init, fini, ld_fini, stack);
}
