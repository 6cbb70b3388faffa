/* Loaded before libc (LD_PRELOAD): the wall clock jumps by up to ten years, back and forth, at every 16th look.
   The clock that only runs forward is left alone, as it is when somebody sets the time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long offset(void) {
  static __thread unsigned looks = 0, state = 0;
  static __thread long now = 0;
  if (!state) state = getenv("CLOCK_SEED") ? atoi(getenv("CLOCK_SEED")) : 1;
  if (looks++ % 16 == 0) {
    state = state * 1103515245u + 12345u;
    now = (long)(state % 630720000u) - 315360000l;
  }
  return now;
}

int clock_gettime(clockid_t which, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *) = NULL;
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int done = real(which, at);
  if (!done && which == CLOCK_REALTIME) at->tv_sec += offset();
  return done;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
