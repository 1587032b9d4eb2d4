// Preloaded into a process: its wall clock is ahead by as many microseconds as the file named by STEPPED_BY holds, which
// another process may change at any moment. Clocks that nobody can set are left alone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *ahead;

__attribute__((constructor)) static void attach(void) {
  const char *name = getenv("STEPPED_BY");
  int fd = name ? open(name, O_RDONLY) : -1;
  if (fd < 0) return;
  void *page = mmap(0, 8, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (page != MAP_FAILED) ahead = page;
}

static int64_t now_ns(clockid_t which) {
  static int (*real)(clockid_t, struct timespec *);
  struct timespec found;
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  real(which, &found);
  return (int64_t)found.tv_sec * 1000000000 + found.tv_nsec + (ahead ? *ahead * 1000 : 0);
}

int clock_gettime(clockid_t which, struct timespec *found) {
  static int (*real)(clockid_t, struct timespec *);
  if (which != CLOCK_REALTIME && which != CLOCK_REALTIME_COARSE) {
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return real(which, found);
  }
  int64_t ns = now_ns(which);
  found->tv_sec = ns / 1000000000;
  found->tv_nsec = ns % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *found, void *zone) {
  (void)zone;
  int64_t ns = now_ns(CLOCK_REALTIME);
  found->tv_sec = ns / 1000000000;
  found->tv_usec = ns % 1000000000 / 1000;
  return 0;
}

time_t time(time_t *found) {
  time_t now = now_ns(CLOCK_REALTIME) / 1000000000;
  if (found) *found = now;
  return now;
}
