/* What each GPU did: loads that begin at a written time (`work` lines of the control file), and the sums that follow from them.

   A load is constant, or on and off with a period. Every sum is an integral over all loads since the first one, computed anew from
   the lines, so any process gets the same sums at the same time, also one that starts later. A GPU without a load does what its
   tree says: flat values, and counters that stand still. */
#define _GNU_SOURCE
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOADS 64     /* of one GPU and its instances; further ones take the place of the last */
#define WHOLE (-1)

struct load {
    int gi; /* WHOLE, or the GPU instance that works */
    unsigned long long since;
    double percent, sm, tensor, dram, milliwatts, pcie, nvlink; /* while on; bytes per second */
    unsigned long long on, period;                             /* microseconds; period 0: always on */
};
static struct load loads[SIM_GPUS][LOADS];
static int load_count[SIM_GPUS];
static unsigned long long reloaded[SIM_GPUS]; /* when the driver was loaded again: its counters and its buffer began anew */

unsigned long long sim_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (unsigned long long)now.tv_sec * 1000000u + (unsigned long long)now.tv_nsec / 1000u;
}

void load_clear(void) {
    memset(load_count, 0, sizeof load_count);
    memset(reloaded, 0, sizeof reloaded);
}

/* work GPU GI SINCE PERCENT SM TENSOR DRAM MILLIWATTS PCIE NVLINK ON PERIOD, whole numbers; GI is - for the whole GPU */
void load_add(const char *of, char *words) {
    char *rest = NULL, *gi = strtok_r(words, " ", &rest);
    unsigned long long n[10];
    int gpu = atoi(of);
    if (gpu < 0 || gpu >= SIM_GPUS || !gi) return;
    for (int i = 0; i < 10; i++) {
        char *word = strtok_r(NULL, " ", &rest);
        if (!word) return;
        n[i] = strtoull(word, NULL, 10);
    }
    struct load *l = &loads[gpu][load_count[gpu] < LOADS ? load_count[gpu]++ : LOADS - 1];
    *l = (struct load){*gi == '-' ? WHOLE : atoi(gi), n[0], (double)n[1], (double)n[2], (double)n[3], (double)n[4], (double)n[5],
                       (double)n[6], (double)n[7], n[8], n[9]};
}

void load_reload(int gpu, unsigned long long at) {
    for (int g = 0; g < SIM_GPUS; g++)
        if (gpu == ANY_GPU || g == gpu) reloaded[g] = at;
}

unsigned long long load_began(int gpu) { return reloaded[gpu]; }

/* Microseconds in which a load was on between two times. */
static double on_time(const struct load *l, unsigned long long from, unsigned long long to) {
    if (from < l->since) from = l->since;
    if (to <= from) return 0;
    if (!l->period || l->on >= l->period) return (double)(to - from);
    unsigned long long ends[2] = {from - l->since, to - l->since}, sum[2];
    for (int i = 0; i < 2; i++) {
        unsigned long long part = ends[i] % l->period;
        sum[i] = ends[i] / l->period * l->on + (part < l->on ? part : l->on);
    }
    return (double)(sum[1] - sum[0]);
}

static double value_of(const struct load *l, enum load_kind kind) {
    const double values[] = {l->percent, l->sm, l->tensor, l->dram, l->milliwatts, l->pcie, l->nvlink};
    return values[kind];
}

/* What holds without any load, or while a load is off. */
static double idle(int gpu, enum load_kind kind) {
    static const char *const keys[] = {"utilization.gpu_percent", "utilization.gpu_percent", NULL, "utilization.memory_percent",
                                       "power.draw_milliwatts", NULL, NULL};
    unsigned int value;
    return keys[kind] && sim_uint(gpu, keys[kind], &value) == NVML_SUCCESS ? value : 0;
}

/* The integral of one value between two times: value x microseconds. gi: of that GPU instance, or NO_INSTANCE for the whole GPU. */
double load_sum(int gpu, unsigned int gi, enum load_kind kind, unsigned long long from, unsigned long long to) {
    double total = 0, flat = idle(gpu, kind);
    int which = gi == NO_INSTANCE ? WHOLE : (int)gi;
    unsigned long long flat_until = to;
    fault_lock_read();
    for (int i = load_count[gpu] - 1; i >= 0; i--) {
        const struct load *l = &loads[gpu][i];
        if (l->gi != which || l->since >= flat_until) continue;
        unsigned long long first = from > l->since ? from : l->since;
        if (first < flat_until) {
            double on = on_time(l, first, flat_until), whole = (double)(flat_until - first);
            double off = kind == LOAD_POWER ? flat : 0;
            total += on * value_of(l, kind) + (whole - on) * off;
        }
        flat_until = l->since;
    }
    fault_unlock();
    if (which != WHOLE) flat = 0;
    return flat_until > from ? total + (double)(flat_until - from) * flat : total;
}

int load_known(int gpu) {
    fault_lock_read();
    int known = load_count[gpu] > 0 || reloaded[gpu];
    fault_unlock();
    return known;
}

/* The mean of one value over the time before now: what NVML calls the last sample period. */
nvmlReturn load_now(int gpu, enum load_kind kind, const char *key, unsigned int *out) {
    unsigned int flat;
    NEED(out);
    TRY(sim_uint(gpu, key, &flat));
    unsigned long long now = sim_now();
    *out = load_known(gpu) ? (unsigned int)(load_sum(gpu, NO_INSTANCE, kind, now - PERIOD_US, now) / PERIOD_US + 0.5) : flat;
    return NVML_SUCCESS;
}

/* A counter of the driver: the tree's value, and what was added since the first load, or since the driver was loaded again. */
nvmlReturn load_counter(int gpu, enum load_kind kind, const char *key, double scale, unsigned long long *out) {
    unsigned long long base = 0, now = sim_now();
    NEED(out);
    if (key) TRY(sim_ull(gpu, key, &base));
    fault_lock_read();
    unsigned long long first = load_count[gpu] ? loads[gpu][0].since : now, again = reloaded[gpu];
    fault_unlock();
    if (again) {
        base = 0;
        first = again;
    }
    *out = base + (first < now ? (unsigned long long)(load_sum(gpu, NO_INSTANCE, kind, first, now) / 1e6 * scale) : 0);
    return NVML_SUCCESS;
}
