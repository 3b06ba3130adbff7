/* The table of values: a flat key=value file, changed by the lines of an append-only control file. */
#define _GNU_SOURCE
#include "sim.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BUCKETS 4096
#define REFRESH_NS 1000000LL /* the files are looked at no more than once in this time */

struct entry {
    struct entry *next;
    char *value;
    char key[];
};

static struct entry *table[BUCKETS];
static struct sim_xid *xids;
static long xid_count, xid_room;
static struct stat base_seen, control_seen;
static off_t control_read;
static _Atomic long long looked_at;

static const char *path_of(const char *variable, const char *fallback) {
    const char *path = getenv(variable);
    return path && *path ? path : fallback;
}
static const char *base_path(void) { return path_of("FAIRLEAD_SIM_NVML", "/etc/fairlead-sim/nvml.conf"); }
static const char *control_path(void) { return path_of("FAIRLEAD_SIM_CONTROL", "/etc/fairlead-sim/nvml.control"); }

static unsigned bucket_of(const char *key) {
    unsigned hash = 2166136261u; /* FNV-1a */
    for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 16777619u;
    return hash % BUCKETS;
}

static struct entry *find(const char *key) {
    struct entry *e = table[bucket_of(key)];
    while (e && strcmp(e->key, key)) e = e->next;
    return e;
}

static void put(const char *key, const char *value) {
    struct entry *e = find(key);
    if (!e) {
        unsigned bucket = bucket_of(key);
        e = calloc(1, sizeof *e + strlen(key) + 1);
        if (!e) return;
        strcpy(e->key, key);
        e->next = table[bucket];
        table[bucket] = e;
    }
    free(e->value);
    e->value = strdup(value);
}

static void forget_all(void) {
    for (int i = 0; i < BUCKETS; i++)
        while (table[i]) {
            struct entry *e = table[i];
            table[i] = e->next;
            free(e->value);
            free(e);
        }
    fault_clear();
    load_clear();
}

static void add_xid(int gpu, unsigned long long code) {
    if (xid_count == xid_room) {
        long room = xid_room ? 2 * xid_room : 64;
        struct sim_xid *more = realloc(xids, (size_t)room * sizeof *more);
        if (!more) return;
        xids = more;
        xid_room = room;
    }
    xids[xid_count++] = (struct sim_xid){gpu, code};
}

static int read_base(void);

static int gpu_word(const char *word) { return !word || !strcmp(word, "*") ? ANY_GPU : atoi(word); }

/* One line of the control file; an unknown or short line is ignored (faults.py checks what it writes). */
static void obey(char *line) {
    char *rest = NULL, *verb = strtok_r(line, " ", &rest), *a = strtok_r(NULL, " ", &rest);
    if (!verb) return;
    if (!strcmp(verb, "lift")) { fault_lift(); return; }
    if (!strcmp(verb, "clear")) { read_base(); return; } /* events are history: they stay */
    if (!a) return;
    if (!strcmp(verb, "set")) { put(a, rest); return; }
    if (!strcmp(verb, "work")) { load_add(a, rest); return; }
    char *b = strtok_r(NULL, " ", &rest), *c = strtok_r(NULL, " ", &rest);
    if (!strcmp(verb, "lost")) fault_lose(atoi(a), 0);
    else if (!strcmp(verb, "handle-lost")) fault_lose(atoi(a), 1);
    else if (!strcmp(verb, "reload") && b) load_reload(gpu_word(a), strtoull(b, NULL, 10));
    else if (!strcmp(verb, "step") && b) {
        struct entry *e = find(a);
        char text[32];
        snprintf(text, sizeof text, "%lld", (e && e->value ? atoll(e->value) : 0) + atoll(b));
        put(a, text);
    } else if (!strcmp(verb, "xid") && b) add_xid(atoi(a), strtoull(b, NULL, 10));
    else if (!strcmp(verb, "error") && b) fault_add(FAULT_ERROR, a, gpu_word(c), atol(b), "");
    else if (!strcmp(verb, "delay") && b) fault_add(FAULT_DELAY, a, gpu_word(c), atol(b), "");
    else if (!strcmp(verb, "hang")) fault_add(FAULT_HANG, a, gpu_word(b), 0, "");
    else if (!strcmp(verb, "crash")) fault_add(FAULT_CRASH, a, gpu_word(b), 0, "");
    else if (!strcmp(verb, "dstate") && b) fault_add(FAULT_DSTATE, a, gpu_word(c), 0, b);
}

static char *slurp(const char *path, off_t from, struct stat *seen, size_t *length) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return NULL;
    char *text = NULL;
    *length = 0;
    if (fstat(fd, seen) == 0 && seen->st_size >= from && (text = malloc((size_t)(seen->st_size - from) + 1))) {
        ssize_t n;
        size_t want = (size_t)(seen->st_size - from);
        while (*length < want && (n = pread(fd, text + *length, want - *length, from + (off_t)*length)) > 0)
            *length += (size_t)n;
        text[*length] = 0;
    }
    close(fd);
    return text;
}

static int read_base(void) {
    size_t length;
    char *text = slurp(base_path(), 0, &base_seen, &length), *rest = NULL;
    if (!text) return -1;
    forget_all();
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        if (!equals || *line == '#') continue;
        *equals = 0;
        put(line, equals + 1);
    }
    free(text);
    return 0;
}

static void read_control(int from_start) {
    size_t length;
    if (from_start) control_read = xid_count = 0;
    char *text = slurp(control_path(), control_read, &control_seen, &length);
    if (!text) return;
    char *line = text, *end;
    while ((end = memchr(line, '\n', length - (size_t)(line - text)))) { /* a line without its end is not yet written */
        *end = 0;
        control_read += end + 1 - line;
        obey(line);
        line = end + 1;
    }
    free(text);
}

static int same_file(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

/* Read both files anew. NVML_ERROR_DRIVER_NOT_LOADED where there is no base file: that is a node without a driver. */
nvmlReturn sim_load(void) {
    fault_lock_write();
    int failed = read_base();
    if (!failed) read_control(1);
    fault_unlock();
    return failed ? NVML_ERROR_DRIVER_NOT_LOADED : NVML_SUCCESS;
}

void sim_refresh(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    long long ns = now.tv_sec * 1000000000LL + now.tv_nsec, last = atomic_load(&looked_at);
    if (ns - last < REFRESH_NS || !atomic_compare_exchange_strong(&looked_at, &last, ns)) return;
    struct stat base = {0}, control = {0};
    int have_base = stat(base_path(), &base) == 0, have_control = stat(control_path(), &control) == 0;
    fault_lock_write();
    int anew = have_base && (!same_file(&base, &base_seen) || base.st_size != base_seen.st_size ||
                             base.st_mtim.tv_nsec != base_seen.st_mtim.tv_nsec ||
                             base.st_mtim.tv_sec != base_seen.st_mtim.tv_sec);
    if (control_read > 0 && (!have_control || !same_file(&control, &control_seen) || control.st_size < control_read))
        anew = 1; /* the control file was replaced: start again from the base */
    if (anew) read_base();
    if (anew || (have_control && control.st_size > control_read)) read_control(anew);
    fault_unlock();
}

/* A value, or the code of the error that stands in its place or in a parent's place; NOT_SUPPORTED where there is none. */
nvmlReturn sim_text(int gpu, const char *key, char *out, size_t size) {
    char full[256];
    if (gpu >= 0) snprintf(full, sizeof full, "gpu.%d.%s", gpu, key);
    else snprintf(full, sizeof full, "%s", key);
    nvmlReturn rc = NVML_ERROR_NOT_SUPPORTED;
    fault_lock_read();
    struct entry *e = find(full);
    int own = e != NULL;
    while (!e) {
        char *dot = strrchr(full, '.');
        if (!dot) break;
        *dot = 0;
        e = find(full);
    }
    if (e && e->value && !strncmp(e->value, "error ", 6)) rc = (nvmlReturn)atoi(e->value + 6);
    else if (own && e->value) {
        rc = strlen(e->value) < size ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
        if (rc == NVML_SUCCESS) strcpy(out, e->value);
    }
    fault_unlock();
    return rc;
}

nvmlReturn sim_number(int gpu, const char *key, long long *out) {
    char text[64];
    TRY(sim_text(gpu, key, text, sizeof text));
    *out = (long long)(text[0] == '-' ? strtoll(text, NULL, 0) : (long long)strtoull(text, NULL, 0));
    return NVML_SUCCESS;
}

nvmlReturn sim_uint(int gpu, const char *key, unsigned int *out) {
    long long value;
    NEED(out);
    TRY(sim_number(gpu, key, &value));
    *out = (unsigned int)value;
    return NVML_SUCCESS;
}

nvmlReturn sim_ull(int gpu, const char *key, unsigned long long *out) {
    long long value;
    NEED(out);
    TRY(sim_number(gpu, key, &value));
    *out = (unsigned long long)value;
    return NVML_SUCCESS;
}

nvmlReturn sim_copy_text(int gpu, const char *key, char *out, unsigned int size) {
    NEED(out);
    return sim_text(gpu, key, out, size);
}

int sim_gpu_count(void) {
    long long count = 0;
    if (sim_number(NO_GPU, "gpus", &count) != NVML_SUCCESS || count < 0) return 0;
    return count > SIM_GPUS ? SIM_GPUS : (int)count;
}

/* A setter's effect: lines in the control file, so that every process sees them. Needs root, as the driver does. */
static nvmlReturn append(const char *line) {
    int length = (int)strlen(line);
    if (geteuid() != 0) return NVML_ERROR_NO_PERMISSION;
    int fd = open(control_path(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return NVML_ERROR_UNKNOWN;
    ssize_t written = write(fd, line, (size_t)length);
    close(fd);
    atomic_store(&looked_at, 0);
    sim_refresh();
    return written == length ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn sim_append_set(int gpu, const char *key, long long value) {
    char line[256];
    snprintf(line, sizeof line, "set gpu.%d.%s %lld\n", gpu, key, value);
    return append(line);
}

/* A mode that the board keeps over a reset and a reboot: KEY.pending now, and what the next power-on makes of it. */
nvmlReturn sim_append_inforom(int gpu, const char *key, long long value) {
    char line[256];
    snprintf(line, sizeof line, "set gpu.%d.%s.pending %lld\ninforom gpu.%d.%s %lld\n", gpu, key, value, gpu, key, value);
    return append(line);
}

long sim_xid_count(void) {
    fault_lock_read();
    long count = xid_count;
    fault_unlock();
    return count;
}

int sim_xid_at(long number, struct sim_xid *out) {
    fault_lock_read();
    int there = number >= 0 && number < xid_count;
    if (there) *out = xids[number];
    fault_unlock();
    return there;
}
