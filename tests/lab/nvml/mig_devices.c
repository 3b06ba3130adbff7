/* MIG devices: what CUDA, Slurm and monitors see of a compute instance.

   `gpu.N.mig.gi.ID.used_bytes` and `gpu.N.mig.gi.ID.sram_uncorrected` are 0 where they are absent. The compute instances of one
   GPU instance share its memory and its counters (NVIDIA Multi-Instance GPU user guide, "Compute Instance"). What a driver answers
   for no instance of its own (utilisation, power, temperature, clocks) is NOT_SUPPORTED by sim_enter_gpu. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

/* Enters a call with a MIG device as a call to its GPU, so that faults of the GPU hit it. */
#define ENTER_MIG(device, mig)                                                        \
    int gpu_;                                                                         \
    struct sim_mig mig;                                                               \
    TRY(sim_begin(__func__));                                                         \
    NEED(sim_mig_at(device, &mig));                                                   \
    TRY(sim_enter_gpu(__func__, &sim_devices[mig.gpu], &gpu_, 0));                    \
    if (!mig.slices) return NVML_ERROR_NOT_FOUND

void sim_process_instance(int gpu, unsigned int number, unsigned int at[2]) {
    char key[64];
    at[0] = at[1] = NO_INSTANCE;
    snprintf(key, sizeof key, "processes.%u.gi", number);
    if (sim_uint(gpu, key, &at[0]) != NVML_SUCCESS) return;
    snprintf(key, sizeof key, "processes.%u.ci", number);
    if (sim_uint(gpu, key, &at[1]) != NVML_SUCCESS) at[1] = 0;
}

static nvmlReturn value_of(const struct sim_mig *mig, const char *name, unsigned long long *out) {
    char key[64];
    snprintf(key, sizeof key, "mig.gi.%u.%s", mig->gi, name);
    *out = 0;
    nvmlReturn rc = sim_ull(mig->gpu, key, out);
    return rc == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : rc; /* there is no such key */
}

/* The UUID is the tree's, or it has the form of a driver's and the instance in its first digits. A driver makes new ones. */
static nvmlReturn uuid_of(const struct sim_mig *mig, char *out, size_t size) {
    char parent[SIM_TEXT], text[SIM_TEXT + 16], key[64];
    snprintf(key, sizeof key, "mig.gi.%u.ci.%u.uuid", mig->gi, mig->ci);
    if (sim_text(mig->gpu, key, text, sizeof text) != NVML_SUCCESS) {
        TRY(sim_text(mig->gpu, "uuid", parent, sizeof parent));
        snprintf(text, sizeof text, "MIG-%d%u%s", mig->slot + 1, mig->ci, strlen(parent) > 6 ? parent + 6 : "");
    }
    if (strlen(text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}
nvmlReturn sim_mig_uuid(const struct sim_mig *mig, char *out, size_t size) {
    NEED(out);
    return mig->slices ? uuid_of(mig, out, size) : NVML_ERROR_NOT_FOUND;
}
nvmlDevice sim_mig_by_uuid(const char *uuid) {
    char text[SIM_TEXT];
    for (int gpu = 0; gpu < sim_gpu_count(); gpu++)
        for (unsigned int i = 0; i < SIM_MIG_DEVICES; i++) {
            struct sim_mig mig;
            nvmlDevice device = sim_mig_device(gpu, i);
            if (!sim_mig_at(device, &mig) || uuid_of(&mig, text, sizeof text) != NVML_SUCCESS) continue;
            if (!strcmp(text, uuid)) return device;
        }
    return NULL;
}
/* "NVIDIA H100 80GB HBM3 MIG 3g.40gb", or with 1c. before the profile if the compute instance does not span the GPU instance. */
nvmlReturn sim_mig_name(const struct sim_mig *mig, char *out, size_t size) {
    char parent[SIM_TEXT], text[SIM_TEXT + 32], part[8] = "";
    NEED(out);
    if (!mig->slices) return NVML_ERROR_NOT_FOUND;
    TRY(sim_text(mig->gpu, "name", parent, sizeof parent));
    if (mig->compute_slices < mig->slices) snprintf(part, sizeof part, "%uc.", mig->compute_slices % 10);
    snprintf(text, sizeof text, "%s MIG %s%s", parent, part, mig->profile);
    if (strlen(text) >= size) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}
nvmlReturn sim_mig_memory(const struct sim_mig *mig, struct sim_memory *out) {
    if (!mig->slices) return NVML_ERROR_NOT_FOUND;
    out->total = (9984ull << 20) * mig->memory_slices;
    out->reserved = 0;
    return value_of(mig, "used_bytes", &out->used);
}
nvmlReturn sim_mig_sram_uncorrected(const struct sim_mig *mig, unsigned long long *out) {
    if (!mig->slices) return NVML_ERROR_NOT_FOUND;
    return value_of(mig, "sram_uncorrected", out);
}

NVML_API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned int *out) {
    unsigned int mode;
    ENTER_GPU();
    NEED(out);
    *out = sim_uint(gpu, "mig_mode.current", &mode) == NVML_SUCCESS ? SIM_MIG_DEVICES : 0;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned int index, nvmlDevice *out) {
    ENTER_GPU();
    NEED(out && index < SIM_MIG_DEVICES);
    nvmlDevice found = sim_mig_device(gpu, index);
    if (!found) return NVML_ERROR_NOT_FOUND;
    *out = found;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned int *out) {
    ENTER();
    NEED(out && (sim_is_mig(device) || sim_index(device) != NO_GPU));
    *out = sim_is_mig(device) != 0;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice device, nvmlDevice *out) {
    struct sim_mig mig;
    ENTER();
    NEED(out && sim_mig_at(device, &mig));
    *out = &sim_devices[mig.gpu];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetAttributes_v2(nvmlDevice device, c_nvmlDeviceAttributes *out) {
    ENTER_MIG(device, mig);
    NEED(out);
    memset(out, 0, sizeof *out);
    out->multiprocessorCount = mig.sm;
    out->gpuInstanceSliceCount = mig.slices;
    out->computeInstanceSliceCount = mig.compute_slices;
    out->memorySizeMB = 9984ull * mig.memory_slices;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetGpuInstanceId(nvmlDevice device, unsigned int *out) {
    ENTER_MIG(device, mig);
    NEED(out);
    *out = mig.gi;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetComputeInstanceId(nvmlDevice device, unsigned int *out) {
    ENTER_MIG(device, mig);
    NEED(out);
    *out = mig.ci;
    return NVML_SUCCESS;
}
