/* Loaded into a rank by the tests (LD_PRELOAD): flips a bit of what it receives from other ranks over TCP, on its way
 * for the program. What the store sends is left as it is.
 *
 *   FLIP_FIRST=3 FLIP_COUNT=1   in the fourth piece of a thousand bytes or more, once
 *
 * Each flip is told on standard error. Gloo receives tensors by recv(), into their memory. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { kLeastBytes = 1000 };

static atomic_int num_seen;

static int is_of_rank(int fd) {
  struct sockaddr_storage address;
  socklen_t size = sizeof(address);
  if (getpeername(fd, (struct sockaddr *)&address, &size) != 0) return 0;
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return 0;
  /* Both families have the port at the same place. */
  return ntohs(((struct sockaddr_in *)&address)->sin_port) != atoi(getenv("MASTER_PORT"));
}

ssize_t recv(int fd, void *buffer, size_t count, int flags) {
  static __typeof__(&recv) next;
  if (next == NULL) next = (__typeof__(&recv))dlsym(RTLD_NEXT, "recv");
  const ssize_t got = next(fd, buffer, count, flags);
  if (got < kLeastBytes || !is_of_rank(fd)) return got;
  const int seen = atomic_fetch_add(&num_seen, 1);
  const int first = atoi(getenv("FLIP_FIRST")), flips = atoi(getenv("FLIP_COUNT"));
  if (seen < first || seen - first >= flips) return got;
  ((char *)buffer)[got / 2] ^= 0x10;
  fprintf(stderr, "flipped a bit of %zd bytes received\n", got);
  return got;
}
