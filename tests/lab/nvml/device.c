/* What a GPU is and does now: names, memory, clocks, power, temperature, PCIe, affinity, and the few setters. */
#include "sim.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT(call, key)                                                                     \
    NVML_API nvmlReturn call(nvmlDevice device, char *out, unsigned int size) {             \
        ENTER_GPU();                                                                        \
        return sim_copy_text(gpu, key, out, size);                                          \
    }
#define UINT(call, key)                                                                     \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int *out) {                        \
        ENTER_GPU();                                                                        \
        return sim_uint(gpu, key, out);                                                     \
    }
#define UINT_EVEN_WHEN_LOST(call, key)                                                      \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int *out) {                        \
        ENTER_WITH(device, 1);                                                              \
        return sim_uint(gpu, key, out);                                                     \
    }
#define ULL(call, key)                                                                      \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned long long *out) {                  \
        ENTER_GPU();                                                                        \
        return sim_ull(gpu, key, out);                                                      \
    }
#define CONSTANT(call, value)                                                               \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int *out) {                        \
        ENTER_GPU();                                                                        \
        (void)gpu;                                                                          \
        NEED(out);                                                                          \
        *out = (value);                                                                     \
        return NVML_SUCCESS;                                                                \
    }
#define PAIR(call, first, second)                                                           \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int *a, unsigned int *b) {         \
        ENTER_GPU();                                                                        \
        NEED(a && b);                                                                       \
        TRY(sim_uint(gpu, first, a));                                                       \
        return sim_uint(gpu, second, b);                                                    \
    }

NVML_API nvmlReturn nvmlDeviceGetName(nvmlDevice device, char *out, unsigned int size) {
    ENTER_GPU_OR_MIG();
    return divided ? sim_mig_name(&mig, out, size) : sim_copy_text(gpu, "name", out, size);
}
TEXT(nvmlDeviceGetSerial, "serial")
TEXT(nvmlDeviceGetBoardPartNumber, "board_part_number")
TEXT(nvmlDeviceGetVbiosVersion, "vbios_version")
TEXT(nvmlDeviceGetInforomImageVersion, "inforom_image_version")
NVML_API nvmlReturn nvmlDeviceGetUUID(nvmlDevice device, char *out, unsigned int size) {
    struct sim_mig mig;
    if (sim_mig_at(device, &mig)) {
        TRY(sim_enter(__func__));
        return sim_mig_uuid(&mig, out, size);
    }
    ENTER_WITH(device, 1);
    return sim_copy_text(gpu, "uuid", out, size);
}
UINT_EVEN_WHEN_LOST(nvmlDeviceGetMinorNumber, "minor")
NVML_API nvmlReturn nvmlDeviceGetIndex(nvmlDevice device, unsigned int *out) {
    ENTER_WITH(device, 1);
    NEED(out);
    *out = (unsigned int)gpu;
    return NVML_SUCCESS;
}
UINT(nvmlDeviceGetBrand, "brand")
UINT(nvmlDeviceGetArchitecture, "architecture")
UINT(nvmlDeviceGetNumGpuCores, "cores")
UINT(nvmlDeviceGetPersistenceMode, "persistence_mode")
UINT(nvmlDeviceGetComputeMode, "compute_mode")
UINT(nvmlDeviceGetAccountingMode, "accounting_mode")
UINT(nvmlDeviceGetPerformanceState, "performance_state")
UINT(nvmlDeviceGetPowerState, "performance_state")
NVML_API nvmlReturn nvmlDeviceGetPowerUsage(nvmlDevice device, unsigned int *out) {
    ENTER_GPU();
    return load_now(gpu, LOAD_POWER, "power.draw_milliwatts", out);
}
UINT(nvmlDeviceGetPowerManagementLimit, "power.limit_milliwatts")
UINT(nvmlDeviceGetEnforcedPowerLimit, "power.limit_milliwatts")
UINT(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_limit_milliwatts")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power.minimum_limit_milliwatts", "power.maximum_limit_milliwatts")
NVML_API nvmlReturn nvmlDeviceGetTotalEnergyConsumption(nvmlDevice device, unsigned long long *out) {
    ENTER_GPU();
    return load_counter(gpu, LOAD_POWER, "power.energy_millijoules", 1, out);
}
ULL(nvmlDeviceGetCurrentClocksEventReasons, "throttle_reasons")
ULL(nvmlDeviceGetCurrentClocksThrottleReasons, "throttle_reasons")
UINT(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.gen_current")
UINT(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen_max")
UINT(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.gen_max")
UINT(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width_current")
UINT(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
UINT(nvmlDeviceGetPcieReplayCounter, "pcie.replays")
UINT(nvmlDeviceGetNumFans, "fans")
UINT(nvmlDeviceGetFanSpeed, "fan_percent")
UINT(nvmlDeviceGetNumaNodeId, "gpu_numa_node") /* only where GPU memory is a NUMA node (GH200): not on these machines */
PAIR(nvmlDeviceGetCudaComputeCapability, "compute_capability.0", "compute_capability.1")
PAIR(nvmlDeviceGetEccMode, "ecc_mode.current", "ecc_mode.pending")
PAIR(nvmlDeviceGetMigMode, "mig_mode.current", "mig_mode.pending")
CONSTANT(nvmlDeviceGetDefaultEccMode, 1)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetDisplayMode, 0)
CONSTANT(nvmlDeviceGetPowerManagementMode, 1)
CONSTANT(nvmlDeviceGetVirtualizationMode, 0)

static nvmlReturn memory(int gpu, struct sim_memory *m) {
    TRY(sim_ull(gpu, "memory.total_bytes", &m->total));
    TRY(sim_ull(gpu, "memory.reserved_bytes", &m->reserved));
    return sim_ull(gpu, "memory.used_bytes", &m->used);
}
NVML_API nvmlReturn nvmlDeviceGetMemoryInfo(nvmlDevice device, c_nvmlMemory_t *out) {
    struct sim_memory m;
    ENTER_GPU_OR_MIG();
    NEED(out);
    TRY(divided ? sim_mig_memory(&mig, &m) : memory(gpu, &m));
    out->total = m.total;
    out->used = m.used + m.reserved; /* version 1 counts what the driver keeps as used */
    out->free = m.total - out->used;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, c_nvmlMemory_v2_t *out) {
    struct sim_memory m;
    ENTER_GPU_OR_MIG();
    NEED(out);
    if (out->version != (sizeof *out | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(divided ? sim_mig_memory(&mig, &m) : memory(gpu, &m));
    out->total = m.total;
    out->reserved = m.reserved;
    out->used = m.used;
    out->free = m.total - m.used - m.reserved;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetBAR1MemoryInfo(nvmlDevice device, c_nvmlBAR1Memory_t *out) {
    unsigned long long total, used;
    ENTER_GPU();
    NEED(out);
    TRY(sim_ull(gpu, "bar1.total_bytes", &total));
    TRY(sim_ull(gpu, "bar1.used_bytes", &used));
    out->bar1Total = total;
    out->bar1Used = used;
    out->bar1Free = total - used;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetUtilizationRates(nvmlDevice device, c_nvmlUtilization_t *out) {
    ENTER_GPU();
    NEED(out);
    unsigned int mig;
    if (sim_uint(gpu, "mig_mode.current", &mig) == NVML_SUCCESS && mig) return NVML_ERROR_NOT_SUPPORTED; /* as recorded of an H200 */
    TRY(load_now(gpu, LOAD_BUSY, "utilization.gpu_percent", &out->gpu));
    return load_now(gpu, LOAD_DRAM, "utilization.memory_percent", &out->memory);
}
static nvmlReturn idle_engine(unsigned int *percent, unsigned int *period) {
    NEED(percent && period);
    *percent = 0;
    *period = 167000; /* microseconds */
    return NVML_SUCCESS;
}
#define ENGINE(call)                                                                              \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int *percent, unsigned int *period) {    \
        ENTER_GPU();                                                                              \
        (void)gpu;                                                                                \
        return idle_engine(percent, period);                                                      \
    }
ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)

NVML_API nvmlReturn nvmlDeviceGetTemperature(nvmlDevice device, unsigned int sensor, unsigned int *out) {
    ENTER_GPU();
    NEED(out && sensor == 0);
    return sim_uint(gpu, "temperature.gpu_celsius", out);
}
NVML_API nvmlReturn nvmlDeviceGetTemperatureV(nvmlDevice device, c_nvmlTemperature_v1_t *out) {
    unsigned int celsius;
    ENTER_GPU();
    NEED(out);
    if (out->version != (sizeof *out | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    NEED(out->sensorType == 0);
    TRY(sim_uint(gpu, "temperature.gpu_celsius", &celsius));
    out->temperature = (int)celsius;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetTemperatureThreshold(nvmlDevice device, unsigned int kind, unsigned int *out) {
    ENTER_GPU();
    if (kind == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN) return sim_uint(gpu, "temperature.shutdown_celsius", out);
    if (kind == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) return sim_uint(gpu, "temperature.slowdown_celsius", out);
    if (kind == NVML_TEMPERATURE_THRESHOLD_MEM_MAX) return sim_uint(gpu, "temperature.memory_max_celsius", out);
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn nvmlDeviceGetPcieThroughput(nvmlDevice device, unsigned int counter, unsigned int *out) {
    struct timespec interval = {0, 20000000}; /* the driver counts for 20 ms: nvml.h says so */
    ENTER_GPU();
    (void)gpu;
    NEED(out && counter < 2);
    nanosleep(&interval, NULL);
    *out = 0;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetPcieSpeed(nvmlDevice device, unsigned int *out) {
    static const unsigned int speed[] = {0, 2500, 5000, 8000, 16000, 32000, 64000}; /* MT/s by generation */
    unsigned int generation;
    ENTER_GPU();
    NEED(out);
    TRY(sim_uint(gpu, "pcie.gen_current", &generation));
    *out = generation < 7 ? speed[generation] : 0;
    return NVML_SUCCESS;
}

#define SETTER(call, key, most)                                                             \
    NVML_API nvmlReturn call(nvmlDevice device, unsigned int value) {                       \
        unsigned int now;                                                                   \
        ENTER_GPU();                                                                        \
        NEED(value <= (most));                                                              \
        TRY(sim_uint(gpu, key, &now));                                                      \
        return sim_append_set(gpu, key, value);                                             \
    }
SETTER(nvmlDeviceSetPersistenceMode, "persistence_mode", 1)
SETTER(nvmlDeviceSetComputeMode, "compute_mode", 3)
SETTER(nvmlDeviceSetAccountingMode, "accounting_mode", 1)
NVML_API nvmlReturn nvmlDeviceSetEccMode(nvmlDevice device, unsigned int value) {
    unsigned int now;
    ENTER_GPU();
    NEED(value <= 1);
    TRY(sim_uint(gpu, "ecc_mode.pending", &now));
    return sim_append_inforom(gpu, "ecc_mode", value); /* current at the next reset */
}
NVML_API nvmlReturn nvmlDeviceSetPowerManagementLimit(nvmlDevice device, unsigned int milliwatts) {
    unsigned int lowest, highest;
    ENTER_GPU();
    TRY(sim_uint(gpu, "power.minimum_limit_milliwatts", &lowest));
    TRY(sim_uint(gpu, "power.maximum_limit_milliwatts", &highest));
    NEED(milliwatts >= lowest && milliwatts <= highest);
    return sim_append_set(gpu, "power.limit_milliwatts", milliwatts);
}
