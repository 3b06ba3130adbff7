/* The driver's buffer of samples, and GPM (GPU performance monitoring), from what load.c says that the GPUs did. */
#define _GNU_SOURCE
#include "sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HOPPER 9u        /* nvmlDeviceArchitecture_t: GPM came with it */
#define ENTRIES 120u     /* of the buffer, unless the key samples.entries says otherwise */

struct gpm_sample {
    int gpu; /* NO_GPU before the first sample was taken into it */
    unsigned int gi;
    unsigned long long at; /* microseconds */
    int without_compute;   /* an instance without a compute instance has no data */
};

static nvmlReturn gpm_gpu(int gpu) {
    unsigned int architecture;
    TRY(sim_uint(gpu, "architecture", &architecture));
    return architecture < HOPPER ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlGpmQueryDeviceSupport(nvmlDevice device, c_nvmlGpmSupport_t *out) {
    ENTER_GPU();
    NEED(out);
    if (out->version != NVML_GPM_SUPPORT_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    out->isSupportedDevice = gpm_gpu(gpu) == NVML_SUCCESS;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmSampleAlloc(struct gpm_sample **out) {
    ENTER();
    NEED(out);
    *out = calloc(1, sizeof **out);
    if (!*out) return NVML_ERROR_MEMORY;
    (*out)->gpu = NO_GPU;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER();
    NEED(sample);
    free(sample);
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmSampleGet(nvmlDevice device, struct gpm_sample *sample) {
    ENTER_GPU();
    NEED(sample);
    TRY(gpm_gpu(gpu));
    *sample = (struct gpm_sample){gpu, NO_INSTANCE, sim_now(), 0};
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpmMigSampleGet(nvmlDevice device, unsigned int gi, struct gpm_sample *sample) {
    int compute;
    ENTER_GPU();
    NEED(sample);
    TRY(gpm_gpu(gpu));
    TRY(sim_mig_instance(gpu, gi, &compute));
    *sample = (struct gpm_sample){gpu, gi, sim_now(), !compute};
    return NVML_SUCCESS;
}
static int gpm_kind(unsigned int id, enum load_kind *out) {
    switch (id) {
    case NVML_GPM_METRIC_GRAPHICS_UTIL: *out = LOAD_BUSY; return 1;
    case NVML_GPM_METRIC_SM_UTIL: *out = LOAD_SM; return 1;
    case NVML_GPM_METRIC_ANY_TENSOR_UTIL: *out = LOAD_TENSOR; return 1;
    case NVML_GPM_METRIC_DRAM_BW_UTIL: *out = LOAD_DRAM; return 1;
    default: return 0;
    }
}
/* Every metric that is not known has its own NOT_SUPPORTED, as each entry has its own code. */
NVML_API nvmlReturn nvmlGpmMetricsGet(c_nvmlGpmMetricsGet_t *asked) {
    ENTER();
    NEED(asked && asked->numMetrics <= NVML_GPM_METRIC_MAX);
    if (asked->version != NVML_GPM_METRICS_GET_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct gpm_sample *first = asked->sample1, *second = asked->sample2;
    NEED(first && second && first->gpu != NO_GPU && first->gpu == second->gpu && first->gi == second->gi);
    NEED(first->at < second->at);
    for (unsigned int i = 0; i < asked->numMetrics; i++) {
        enum load_kind kind;
        int known = gpm_kind(asked->metrics[i].metricId, &kind);
        asked->metrics[i].nvmlReturn = known ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
        if (!known) continue;
        double passed = (double)(second->at - first->at);
        asked->metrics[i].value = load_sum(first->gpu, first->gi, kind, first->at, second->at) / passed;
        if (first->without_compute || second->without_compute) asked->metrics[i].value = NAN;
    }
    return NVML_SUCCESS;
}

/* The value of one kind of sample now. The kinds without a key are those that the simulated GPUs do not have. */
static nvmlReturn sample_now(int gpu, unsigned int kind, unsigned int *out) {
    static const char *const keys[] = {"power.draw_milliwatts", "utilization.gpu_percent", "utilization.memory_percent"};
    if (kind < sizeof keys / sizeof keys[0]) return sim_uint(gpu, keys[kind], out);
    if (kind == NVML_PROCESSOR_CLK_SAMPLES) return sim_megahertz(gpu, 1, 0, out);
    if (kind == NVML_MEMORY_CLK_SAMPLES) return sim_megahertz(gpu, 2, 0, out);
    return NVML_ERROR_NOT_SUPPORTED;
}
static unsigned int setting(int gpu, const char *key, unsigned int fallback) {
    unsigned int value;
    return sim_uint(gpu, key, &value) == NVML_SUCCESS ? value : fallback;
}
/* Samples are one period apart and end at multiples of the period. samples.dry: none while idle. */
NVML_API nvmlReturn nvmlDeviceGetSamples(nvmlDevice device, unsigned int kind, unsigned long long since, unsigned int *type,
                                         unsigned int *count, c_nvmlSample_t *out) {
    static const enum load_kind kinds[] = {LOAD_POWER, LOAD_BUSY, LOAD_DRAM};
    unsigned int value, found = 0, mig;
    ENTER_GPU();
    NEED(type && count);
    TRY(sample_now(gpu, kind, &value));
    if (kind == NVML_GPU_UTILIZATION_SAMPLES && sim_uint(gpu, "mig_mode.current", &mig) == NVML_SUCCESS && mig)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned int entries = setting(gpu, "samples.entries", ENTRIES), dry = setting(gpu, "samples.dry", 0);
    unsigned long long newest = sim_now() / PERIOD_US * PERIOD_US;
    *type = NVML_VALUE_TYPE_UNSIGNED_INT;
    for (unsigned int i = 0; i < entries; i++) {
        unsigned long long at = newest - (unsigned long long)(entries - 1 - i) * PERIOD_US;
        if (at <= since || at < load_began(gpu)) continue;
        if (kind < sizeof kinds / sizeof kinds[0] && load_known(gpu))
            value = (unsigned int)(load_sum(gpu, NO_INSTANCE, kinds[kind], at - PERIOD_US, at) / PERIOD_US + 0.5);
        if (dry && !value) continue; /* drivers exist that take no samples of an idle GPU */
        if (out && found < *count) {
            memset(&out[found], 0, sizeof *out);
            out[found].timeStamp = at;
            out[found].sampleValue.uiVal = value;
        }
        found++;
    }
    if (!found) return NVML_ERROR_NOT_FOUND;
    if (out && found > *count) found = *count;
    *count = found;
    return NVML_SUCCESS;
}
