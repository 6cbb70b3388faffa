/* Loaded before libc (LD_PRELOAD): records, below one folder, every change of a name and every sync.

   At a sync of a file its content is copied, for that is all of it that a power cut leaves for certain. Each
   line of the log is an operation, its paths and the number of the copy, separated by tabs. Names are recorded
   while a lock is held, so that the log has the order in which they changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX], copies[PATH_MAX];
static int log_file = -1, number = 0;

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__) = NULL; \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
  const char *folder = getenv("POWERCUT_ROOT"), *written = getenv("POWERCUT_LOG");
  if (!folder || !written) return;
  snprintf(root, sizeof root, "%s", folder);
  snprintf(copies, sizeof copies, "%s.copies", written);
  REAL(int, "open", const char *, int, ...);
  log_file = real(written, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

#pragma GCC diagnostic ignored "-Wformat-truncation" /* names that long are refused by the system */

static int inside(const char *path) {
  size_t length = strlen(root);
  return log_file >= 0 && strncmp(path, root, length) == 0 && (path[length] == '/' || !path[length]);
}

/* The whole path of a name below an open folder; its own last part is not followed. */
static int whole(int folder, const char *name, char *out) {
  char from[64], base[PATH_MAX], joined[2 * PATH_MAX], resolved[PATH_MAX];
  if (name[0] == '/') {
    snprintf(joined, sizeof joined, "%s", name);
  } else {
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) return 0;
    } else {
      snprintf(from, sizeof from, "/proc/self/fd/%d", folder);
      ssize_t count = readlink(from, base, sizeof base - 1);
      if (count < 0) return 0;
      base[count] = 0;
    }
    snprintf(joined, sizeof joined, "%s/%s", base, name);
  }
  size_t length = strlen(joined);
  while (length > 1 && joined[length - 1] == '/') joined[--length] = 0;
  char *last = strrchr(joined, '/');
  if (!last) return 0;
  *last = 0;
  if (!realpath(last == joined ? "/" : joined, resolved)) return 0;
  snprintf(out, PATH_MAX, "%s/%s", strcmp(resolved, "/") ? resolved : "", last + 1);
  return inside(out);
}

static void record(const char *what, const char *first, const char *second, int copy) {
  char line[3 * PATH_MAX];
  int length = snprintf(line, sizeof line, "%s\t%s\t%s\t%d\n", what, first, second, copy);
  if (write(log_file, line, length) != length) abort();
}

/* fork and exec: the copy must not be recorded itself. */
static void copy(const char *from, int into) {
  char target[PATH_MAX + 16];
  snprintf(target, sizeof target, "%s/%d", copies, into);
  pid_t child = fork();
  if (!child) {
    unsetenv("LD_PRELOAD");
    execlp("cp", "cp", "-a", from, target, (char *)NULL);
    _exit(127);
  }
  waitpid(child, NULL, 0);
}

#define BEGIN pthread_mutex_lock(&lock); int saved = 0;
#define END saved = errno; pthread_mutex_unlock(&lock); errno = saved;

static int opened(int folder, const char *name, int flags, mode_t mode, int (*work)(int, const char *, int, mode_t)) {
  char path[PATH_MAX];
  struct stat status;
  if (!(flags & (O_CREAT | O_TRUNC)) || !whole(folder, name, path)) return work(folder, name, flags, mode);
  BEGIN
  int was_there = lstat(path, &status) == 0;
  int found = work(folder, name, flags, mode);
  if (found >= 0 && !was_there) record("create", path, "", 0);
  else if (found >= 0 && flags & O_TRUNC) record("empty", path, "", 0);
  END
  return found;
}

static int real_openat(int folder, const char *name, int flags, mode_t mode) {
  REAL(int, "openat", int, const char *, int, ...);
  return real(folder, name, flags, mode);
}

#define MODE va_list more; va_start(more, flags); mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(more, mode_t) : 0; va_end(more);
int open(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode, real_openat); }
int open64(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags | O_LARGEFILE, mode, real_openat); }
int openat(int folder, const char *name, int flags, ...) { MODE return opened(folder, name, flags, mode, real_openat); }
int openat64(int folder, const char *name, int flags, ...) { MODE return opened(folder, name, flags | O_LARGEFILE, mode, real_openat); }
int creat(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode, real_openat); }

static FILE *stream(const char *name, const char *how, FILE *(*real)(const char *, const char *)) {
  char path[PATH_MAX];
  struct stat status;
  if (how[0] == 'r' || !whole(AT_FDCWD, name, path)) return real(name, how);
  BEGIN
  int was_there = lstat(path, &status) == 0;
  FILE *found = real(name, how);
  if (found && !was_there) record("create", path, "", 0);
  else if (found && how[0] == 'w') record("empty", path, "", 0);
  END
  return found;
}
FILE *fopen(const char *name, const char *how) { REAL(FILE *, "fopen", const char *, const char *); return stream(name, how, real); }
FILE *fopen64(const char *name, const char *how) { REAL(FILE *, "fopen64", const char *, const char *); return stream(name, how, real); }

#define CHANGE(what, first_folder, first, second_folder, second, call) \
  char one[PATH_MAX] = "", two[PATH_MAX] = ""; \
  const char *other = second; \
  int counts = whole(first_folder, first, one); \
  if (other && whole(second_folder, other, two)) counts = 1; \
  if (!counts) return call; \
  BEGIN int done = call; if (!done) record(what, one, two, 0); END \
  return done;

int rename(const char *a, const char *b) { REAL(int, "rename", const char *, const char *); CHANGE("rename", AT_FDCWD, a, AT_FDCWD, b, real(a, b)) }
int renameat(int f, const char *a, int g, const char *b) { REAL(int, "renameat", int, const char *, int, const char *); CHANGE("rename", f, a, g, b, real(f, a, g, b)) }
int link(const char *a, const char *b) { REAL(int, "link", const char *, const char *); CHANGE("link", AT_FDCWD, a, AT_FDCWD, b, real(a, b)) }
int linkat(int f, const char *a, int g, const char *b, int flags) { REAL(int, "linkat", int, const char *, int, const char *, int); CHANGE("link", f, a, g, b, real(f, a, g, b, flags)) }
int unlink(const char *a) { REAL(int, "unlink", const char *); CHANGE("remove", AT_FDCWD, a, AT_FDCWD, NULL, real(a)) }
int unlinkat(int f, const char *a, int flags) { REAL(int, "unlinkat", int, const char *, int); CHANGE("remove", f, a, AT_FDCWD, NULL, real(f, a, flags)) }
int rmdir(const char *a) { REAL(int, "rmdir", const char *); CHANGE("remove", AT_FDCWD, a, AT_FDCWD, NULL, real(a)) }
int mkdir(const char *a, mode_t mode) { REAL(int, "mkdir", const char *, mode_t); CHANGE("mkdir", AT_FDCWD, a, AT_FDCWD, NULL, real(a, mode)) }
int mkdirat(int f, const char *a, mode_t mode) { REAL(int, "mkdirat", int, const char *, mode_t); CHANGE("mkdir", f, a, AT_FDCWD, NULL, real(f, a, mode)) }

static int synced(int file, int (*real)(int)) {
  char from[64], path[PATH_MAX];
  struct stat status;
  snprintf(from, sizeof from, "/proc/self/fd/%d", file);
  ssize_t count = readlink(from, path, sizeof path - 1);
  if (count > 0) path[count] = 0;
  if (count <= 0 || !inside(path) || fstat(file, &status)) return real(file);
  BEGIN
  int done = real(file);
  if (S_ISDIR(status.st_mode)) {
    record("sync folder", path, "", 0);
  } else {
    copy(path, ++number);
    record("sync", path, "", number);
  }
  END
  return done;
}
int fsync(int file) { REAL(int, "fsync", int); return synced(file, real); }
int fdatasync(int file) { REAL(int, "fdatasync", int); return synced(file, real); }
void sync(void) {
  REAL(void, "sync", void);
  if (log_file < 0) { real(); return; }
  BEGIN
  real();
  copy(root, ++number);
  record("sync all", root, "", number);
  END
}
