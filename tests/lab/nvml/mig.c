/* Multi-Instance GPU: mode, GPU instances, compute instances, and the devices that they are seen as.

   Profiles of the GPUs with 80 GB: NVIDIA Multi-Instance GPU user guide, "Supported MIG Profiles". An instance is a slot,
   `gpu.N.mig.slot.K`: 0, or 1 + the profile's row, its first memory slice and whether it holds a compute instance. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

#define SLOTS 7
#define ROW(slot) (((slot) & 31) - 1)
#define START(slot) ((slot) >> 5 & 15)
#define COMPUTE(slot) ((slot) >> 9 & 1)
#define KEEPS_IT 7 /* NVML_DEVICE_ARCH_AMPERE: keeps its MIG mode over a reboot; later ones do not */

static const struct profile {
    unsigned int number, id, slices, memory, most, step, sm;
    const char *name;
} profiles[] = {
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 1, 7, 1, 16, "MIG 1g.10gb"},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, 1, 1, 16, "MIG 1g.10gb+me"},
    {NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 2, 4, 2, 16, "MIG 1g.20gb"},
    {NVML_GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 2, 3, 2, 32, "MIG 2g.20gb"},
    {NVML_GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 4, 2, 4, 60, "MIG 3g.40gb"},
    {NVML_GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 4, 1, 8, 64, "MIG 4g.40gb"},
    {NVML_GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 8, 1, 8, 132, "MIG 7g.80gb"},
};
#define ROWS (sizeof profiles / sizeof profiles[0])
static const unsigned int compute_slices[NVML_COMPUTE_INSTANCE_PROFILE_COUNT] = {1, 2, 3, 4, 7, 8, 6, 0, 0};

struct sim_instance { /* a handle is the address of one of these: GPU instance, compute instance, MIG device */
    int gpu, slot;
};
typedef struct sim_instance *instance;
static struct sim_instance gpu_instances[SIM_GPUS][SLOTS], compute_instances[SIM_GPUS][SLOTS], devices[SIM_GPUS][SLOTS];

__attribute__((constructor)) static void prepare(void) {
    for (int g = 0; g < SIM_GPUS; g++)
        for (int s = 0; s < SLOTS; s++) gpu_instances[g][s] = compute_instances[g][s] = devices[g][s] = (struct sim_instance){g, s};
}

static int among(const void *handle, const void *first, size_t size) {
    size_t at = (size_t)((const char *)handle - (const char *)first);
    return handle && at < size && at % sizeof(struct sim_instance) == 0;
}
#define AMONG(handle, array) among(handle, array, sizeof array)

static unsigned int slot_of(int gpu, int slot) {
    char key[32];
    unsigned int value;
    snprintf(key, sizeof key, "mig.slot.%d", slot);
    return sim_uint(gpu, key, &value) == NVML_SUCCESS ? value : 0;
}
static nvmlReturn set_slot(int gpu, int slot, unsigned int value) {
    char key[32];
    snprintf(key, sizeof key, "mig.slot.%d", slot);
    return sim_append_set(gpu, key, value);
}
static nvmlReturn enabled(int gpu) {
    unsigned int mode;
    TRY(sim_uint(gpu, "mig_mode.current", &mode));
    return mode ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
static int in_use(int gpu) {
    unsigned int count;
    return sim_uint(gpu, "processes.count", &count) == NVML_SUCCESS && count > 0;
}
static const struct profile *by_id(unsigned int id) {
    for (size_t i = 0; i < ROWS; i++)
        if (profiles[i].id == id) return &profiles[i];
    return NULL;
}
static const struct profile *by_number(unsigned int number) {
    for (size_t i = 0; i < ROWS; i++)
        if (profiles[i].number == number) return &profiles[i];
    return NULL;
}

NVML_API nvmlReturn nvmlDeviceSetMigMode(nvmlDevice device, unsigned int mode, unsigned int *activation) {
    unsigned int now, architecture;
    ENTER_GPU();
    NEED(mode <= 1 && activation);
    TRY(sim_uint(gpu, "mig_mode.current", &now));
    TRY(sim_uint(gpu, "architecture", &architecture));
    int busy = in_use(gpu);
    for (int s = 0; s < SLOTS; s++) busy |= slot_of(gpu, s) != 0;
    TRY(architecture == KEEPS_IT ? sim_append_inforom(gpu, "mig_mode", mode) : sim_append_set(gpu, "mig_mode.pending", mode));
    *activation = busy && now != mode ? NVML_ERROR_IN_USE : NVML_SUCCESS;
    return busy && now != mode ? NVML_SUCCESS : sim_append_set(gpu, "mig_mode.current", mode);
}

#define FILL(info, p)                                    \
    do {                                                 \
        (info)->id = (p)->id;                            \
        (info)->isP2pSupported = 0;                      \
        (info)->sliceCount = (p)->slices;                \
        (info)->instanceCount = (p)->most;               \
        (info)->multiprocessorCount = (p)->sm;           \
        (info)->copyEngineCount = (p)->slices;           \
        (info)->decoderCount = (p)->slices;              \
        (info)->encoderCount = 0;                        \
        (info)->jpegCount = (info)->ofaCount = 0;        \
        (info)->memorySizeMB = 9984ull * (p)->memory;    \
    } while (0)

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice device, unsigned int number,
                                                        c_nvmlGpuInstanceProfileInfo_t *out) {
    ENTER_GPU();
    NEED(out && number < NVML_GPU_INSTANCE_PROFILE_COUNT);
    TRY(enabled(gpu));
    const struct profile *p = by_number(number);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    FILL(out, p);
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice device, unsigned int number,
                                                         c_nvmlGpuInstanceProfileInfo_v2_t *out) {
    ENTER_GPU();
    NEED(out && number < NVML_GPU_INSTANCE_PROFILE_COUNT);
    if (out->version != (sizeof *out | 2u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    TRY(enabled(gpu));
    const struct profile *p = by_number(number);
    if (!p) return NVML_ERROR_NOT_SUPPORTED;
    FILL(out, p);
    snprintf(out->name, sizeof out->name, "%s", p->name);
    return NVML_SUCCESS;
}

/* The first memory slice that an instance of this profile could begin at, or -1. */
static int room_for(int gpu, const struct profile *p) {
    unsigned int taken = 0, slices = p->slices, same = 1;
    for (int s = 0; s < SLOTS; s++) {
        unsigned int slot = slot_of(gpu, s);
        if (!slot) continue;
        const struct profile *other = &profiles[ROW(slot)];
        taken |= ((1u << other->memory) - 1) << START(slot);
        slices += other->slices;
        same += other == p;
    }
    if (slices > 7 || same > p->most) return -1;
    for (unsigned int start = 0; start + p->memory <= 8; start += p->step)
        if (!(taken & ((1u << p->memory) - 1) << start)) return (int)start;
    return -1;
}

NVML_API nvmlReturn nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice device, unsigned int id, unsigned int *out) {
    ENTER_GPU();
    const struct profile *p = by_id(id);
    NEED(out && p);
    TRY(enabled(gpu));
    *out = room_for(gpu, p) >= 0;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceCreateGpuInstance(nvmlDevice device, unsigned int id, instance *out) {
    ENTER_GPU();
    const struct profile *p = by_id(id);
    NEED(out && p);
    TRY(enabled(gpu));
    int start = room_for(gpu, p);
    for (int s = 0; s < SLOTS && start >= 0; s++)
        if (!slot_of(gpu, s)) {
            TRY(set_slot(gpu, s, 1 + (unsigned int)(p - profiles) + ((unsigned int)start << 5)));
            *out = &gpu_instances[gpu][s];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_INSUFFICIENT_RESOURCES;
}
NVML_API nvmlReturn nvmlDeviceGetGpuInstances(nvmlDevice device, unsigned int id, instance *out, unsigned int *count) {
    ENTER_GPU();
    NEED(out && count && by_id(id));
    TRY(enabled(gpu));
    *count = 0;
    for (int s = 0; s < SLOTS; s++) {
        unsigned int slot = slot_of(gpu, s);
        if (slot && profiles[ROW(slot)].id == id) out[(*count)++] = &gpu_instances[gpu][s];
    }
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetGpuInstanceById(nvmlDevice device, unsigned int id, instance *out) {
    ENTER_GPU();
    NEED(out);
    TRY(enabled(gpu));
    if (id < 1 || id > SLOTS || !slot_of(gpu, (int)id - 1)) return NVML_ERROR_NOT_FOUND;
    *out = &gpu_instances[gpu][id - 1];
    return NVML_SUCCESS;
}

#define ENTER_INSTANCE(handle, array)                                           \
    ENTER();                                                                    \
    NEED(AMONG(handle, array));                                                 \
    const int gpu = (handle)->gpu, at = (handle)->slot;                         \
    const unsigned int slot = slot_of(gpu, at);                                 \
    TRY(sim_suffer(__func__, gpu));                                             \
    if (!slot) return NVML_ERROR_NOT_FOUND

NVML_API nvmlReturn nvmlGpuInstanceGetInfo(instance handle, c_nvmlGpuInstanceInfo_t *out) {
    ENTER_INSTANCE(handle, gpu_instances);
    NEED(out);
    out->device = &sim_devices[gpu];
    out->id = (unsigned int)at + 1;
    out->profileId = profiles[ROW(slot)].id;
    out->placement.start = START(slot);
    out->placement.size = profiles[ROW(slot)].memory;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpuInstanceDestroy(instance handle) {
    ENTER_INSTANCE(handle, gpu_instances);
    if (COMPUTE(slot)) return NVML_ERROR_IN_USE;
    return set_slot(gpu, at, 0);
}

/* Compute instances: those of the whole GPU instance and smaller ones are told, one that spans it can be made. */
static nvmlReturn compute_profile(unsigned int number, unsigned int slot, unsigned int *slices) {
    NEED(number < NVML_COMPUTE_INSTANCE_PROFILE_COUNT);
    *slices = compute_slices[number];
    return *slices && *slices <= profiles[ROW(slot)].slices ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
NVML_API nvmlReturn nvmlGpuInstanceGetComputeInstanceProfileInfo(instance handle, unsigned int number, unsigned int engine,
                                                                 c_nvmlComputeInstanceProfileInfo_t *out) {
    unsigned int slices;
    ENTER_INSTANCE(handle, gpu_instances);
    NEED(out && engine == 0);
    TRY(compute_profile(number, slot, &slices));
    memset(out, 0, sizeof *out);
    out->id = number;
    out->sliceCount = slices;
    out->instanceCount = profiles[ROW(slot)].slices / slices;
    out->multiprocessorCount = slices * 16;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpuInstanceGetComputeInstances(instance handle, unsigned int id, instance *out, unsigned int *count) {
    unsigned int slices;
    ENTER_INSTANCE(handle, gpu_instances);
    NEED(out && count);
    TRY(compute_profile(id, slot, &slices));
    *count = 0;
    if (COMPUTE(slot) && slices == profiles[ROW(slot)].slices) out[(*count)++] = &compute_instances[gpu][at];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpuInstanceCreateComputeInstance(instance handle, unsigned int id, instance *out) {
    unsigned int slices;
    ENTER_INSTANCE(handle, gpu_instances);
    NEED(out);
    TRY(compute_profile(id, slot, &slices));
    if (slices != profiles[ROW(slot)].slices) return NVML_ERROR_NOT_SUPPORTED;
    if (COMPUTE(slot)) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    TRY(set_slot(gpu, at, slot | 1u << 9));
    *out = &compute_instances[gpu][at];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlComputeInstanceDestroy(instance handle) {
    ENTER_INSTANCE(handle, compute_instances);
    if (!COMPUTE(slot)) return NVML_ERROR_NOT_FOUND;
    if (in_use(gpu)) return NVML_ERROR_IN_USE;
    return set_slot(gpu, at, slot & ~(1u << 9));
}
NVML_API nvmlReturn nvmlComputeInstanceGetInfo_v2(instance handle, c_nvmlComputeInstanceInfo_t *out) {
    ENTER_INSTANCE(handle, compute_instances);
    NEED(out && COMPUTE(slot));
    out->device = &devices[gpu][at];
    out->gpuInstance = &gpu_instances[gpu][at];
    out->id = 0;
    out->placement.start = 0;
    out->placement.size = profiles[ROW(slot)].slices;
    for (out->profileId = 0; compute_slices[out->profileId] != out->placement.size;) out->profileId++;
    return NVML_SUCCESS;
}

/* MIG devices: what CUDA and monitors see of a compute instance. */
int sim_is_mig(nvmlDevice device) { return AMONG(device, devices); }

int sim_mig_uuid(nvmlDevice device, char *out, unsigned int size, nvmlReturn *rc) {
    char parent[SIM_TEXT], text[SIM_TEXT + 16];
    if (!AMONG(device, devices)) return 0;
    instance handle = (instance)(void *)device;
    *rc = sim_text(handle->gpu, "uuid", parent, sizeof parent);
    snprintf(text, sizeof text, "MIG-%d%s", handle->slot + 1, strlen(parent) > 5 ? parent + 5 : "");
    if (*rc == NVML_SUCCESS && strlen(text) >= size) *rc = NVML_ERROR_INSUFFICIENT_SIZE;
    if (*rc == NVML_SUCCESS) strcpy(out, text);
    return 1;
}
NVML_API nvmlReturn nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned int *out) {
    unsigned int mode;
    ENTER_GPU();
    NEED(out);
    *out = sim_uint(gpu, "mig_mode.current", &mode) == NVML_SUCCESS ? SLOTS : 0;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned int index, nvmlDevice *out) {
    ENTER_GPU();
    NEED(out && index < SLOTS);
    for (int s = 0; s < SLOTS; s++)
        if (COMPUTE(slot_of(gpu, s)) && !index--) {
            *out = (nvmlDevice)(void *)&devices[gpu][s];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}
NVML_API nvmlReturn nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned int *out) {
    ENTER();
    NEED(out && (sim_is_mig(device) || sim_index(device) != NO_GPU));
    *out = sim_is_mig(device) != 0;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice device, nvmlDevice *out) {
    ENTER();
    NEED(out && sim_is_mig(device));
    *out = &sim_devices[((instance)(void *)device)->gpu];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetAttributes_v2(nvmlDevice device, c_nvmlDeviceAttributes *out) {
    ENTER();
    NEED(out && sim_is_mig(device));
    instance handle = (instance)(void *)device;
    const struct profile *p = &profiles[ROW(slot_of(handle->gpu, handle->slot))];
    memset(out, 0, sizeof *out);
    out->multiprocessorCount = p->sm;
    out->gpuInstanceSliceCount = out->computeInstanceSliceCount = p->slices;
    out->memorySizeMB = 9984ull * p->memory;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetGpuInstanceId(nvmlDevice device, unsigned int *out) {
    ENTER();
    NEED(out && sim_is_mig(device));
    *out = (unsigned int)((instance)(void *)device)->slot + 1;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetComputeInstanceId(nvmlDevice device, unsigned int *out) {
    ENTER();
    NEED(out && sim_is_mig(device));
    *out = 0;
    return NVML_SUCCESS;
}
