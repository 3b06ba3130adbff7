/* How long clocks were held back, and how far a GPU is from its slowdown. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Counters of nanoseconds, by field id. Those of the slowdowns came with r575 and moved with r590. */
nvmlReturn sim_clock_field(int gpu, unsigned int id, unsigned long long *out) {
    static const struct { unsigned int id; const char *name; } always[] = {
        {74, "sw_power_cap"}, {75, "thermal"}, {76, "sync_boost"}, {77, "board_limit"}, {79, "reliability"},
    };
    static const char *const slowdowns[] = {"hw_thermal_slowdown", "hw_power_brake_slowdown"};
    char text[SIM_TEXT], key[64];
    const char *name = NULL;
    unsigned int branch = 0, first;
    for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
        if (always[i].id == id) name = always[i].name;
    if (sim_text(NO_GPU, "driver_version", text, sizeof text) == NVML_SUCCESS) branch = (unsigned int)atoi(text);
    first = branch >= 590 ? 270 : 252;
    if (branch >= 575 && id >= first && id - first < 2) name = slowdowns[id - first];
    if (!name) return NVML_ERROR_NOT_SUPPORTED;
    snprintf(key, sizeof key, "clock_events.%s_nanoseconds", name);
    return sim_ull(gpu, key, out);
}

/* What the tree says, or less where the GPU has become hotter since: a fault may set either. */
NVML_API nvmlReturn nvmlDeviceGetMarginTemperature(nvmlDevice device, c_nvmlMarginTemperature_v1_t *out) {
    unsigned int celsius, slowdown;
    long long margin;
    ENTER_GPU();
    NEED(out);
    if (out->version != (sizeof *out | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(sim_number(gpu, "temperature.margin_celsius", &margin));
    if (sim_uint(gpu, "temperature.gpu_celsius", &celsius) == NVML_SUCCESS &&
        sim_uint(gpu, "temperature.slowdown_celsius", &slowdown) == NVML_SUCCESS &&
        (long long)slowdown - (long long)celsius < margin)
        margin = (long long)slowdown - (long long)celsius;
    out->marginTemperature = (int)margin;
    return NVML_SUCCESS;
}
