/* Loaded into a rank by the tests (LD_PRELOAD): stops it before one call to the system, as if SIGSTOP had come just
 * then.
 *
 *   STOP_AT=connect:3     before its third connect() over TCP; also listen, fsync, rename
 *   STOP_UNDER=/a/folder  only calls of fsync and rename for a path that begins so count
 *
 * The test sees that the process has stopped, and kills it or another one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static atomic_int num_seen;

static void pass(const char *name) {
  const char *wanted = getenv("STOP_AT");
  const size_t length = strlen(name);
  if (wanted == NULL || strncmp(wanted, name, length) != 0 || wanted[length] != ':') return;
  if (atomic_fetch_add(&num_seen, 1) + 1 == atoi(wanted + length + 1)) kill(getpid(), SIGSTOP);
}

static void pass_path(const char *name, const char *path) {
  const char *folder = getenv("STOP_UNDER");
  if (folder == NULL || strncmp(path, folder, strlen(folder)) == 0) pass(name);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int connect(int fd, const struct sockaddr *address, socklen_t size) {
  int kind = 0;
  socklen_t kind_size = sizeof(kind);
  getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &kind_size);
  const int is_internet = address->sa_family == AF_INET || address->sa_family == AF_INET6;
  if (kind == SOCK_STREAM && is_internet) pass("connect");
  return NEXT(connect)(fd, address, size);
}

int listen(int fd, int backlog) {
  pass("listen");
  return NEXT(listen)(fd, backlog);
}

int fsync(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(link, path, sizeof(path) - 1);
  path[length < 0 ? 0 : length] = '\0';
  pass_path("fsync", path);
  return NEXT(fsync)(fd);
}

int rename(const char *from, const char *to) {
  pass_path("rename", from);
  return NEXT(rename)(from, to);
}
