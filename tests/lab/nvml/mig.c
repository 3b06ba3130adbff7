/* Multi-Instance GPU: mode, GPU instances, and compute instances. mig_devices.c has the devices that these are seen as.

   Profiles of the GPUs with 80 GB: NVIDIA Multi-Instance GPU user guide, "Supported MIG Profiles". An instance is a slot,
   `gpu.N.mig.slot.K`: 0, or 1 + the profile's row, its first memory slice (from bit 5), a bit for a compute instance that
   spans it (bit 9), and a bit for each of its compute instances of one slice (from bit 10). The id of a GPU instance follows
   from its size and its first memory slice: 0 is the whole GPU, 1 and 2 the halves, 3 to 6 the quarters, 7 to 14 the eighths.
   A listing of nvidia-smi on an H200 with 3g, 2g and two 1g agrees (ids 2, 3, 9 and 10). */
#include "sim.h"

#include <stdio.h>
#include <string.h>

#define SLOTS SIM_MIG_DEVICES
#define ROW(slot) (((slot) & 31) - 1)
#define START(slot) ((slot) >> 5 & 15)
#define SPANNING (1u << 9)
#define SMALL_SHIFT 10
#define SMALL(slot) ((slot) >> SMALL_SHIFT & 127)
#define COMPUTE(slot) ((slot) & SPANNING ? 1u : SMALL(slot)) /* a bit for each compute instance, by its id */
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
    int gpu, slot, ci;
};
typedef struct sim_instance *instance;
static struct sim_instance gpu_instances[SIM_GPUS][SLOTS], compute_instances[SIM_GPUS][SLOTS][SLOTS];
static struct sim_instance devices[SIM_GPUS][SLOTS][SLOTS];

__attribute__((constructor)) static void prepare(void) {
    for (int g = 0; g < SIM_GPUS; g++)
        for (int s = 0; s < SLOTS; s++) {
            gpu_instances[g][s] = (struct sim_instance){g, s, 0};
            for (int c = 0; c < SLOTS; c++) compute_instances[g][s][c] = devices[g][s][c] = (struct sim_instance){g, s, c};
        }
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
static unsigned int gi_of(unsigned int slot) {
    unsigned int memory = profiles[ROW(slot)].memory;
    return 8 / memory - 1 + START(slot) / memory;
}
/* Says whether a process is on this compute instance. A process without an instance (`processes.N.gi`) uses the whole GPU. */
static int in_use(int gpu, unsigned int gi, unsigned int ci) {
    unsigned int count, at[2];
    if (sim_uint(gpu, "processes.count", &count) != NVML_SUCCESS) return 0;
    for (unsigned int i = 0; i < count; i++) {
        sim_process_instance(gpu, i, at);
        if (at[0] == NO_INSTANCE || (at[0] == gi && at[1] == ci)) return 1;
    }
    return 0;
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
    unsigned int processes;
    int busy = sim_uint(gpu, "processes.count", &processes) == NVML_SUCCESS && processes > 0;
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
    for (int s = 0; s < SLOTS; s++)
        if (slot_of(gpu, s) && gi_of(slot_of(gpu, s)) == id) {
            *out = &gpu_instances[gpu][s];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
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
    out->id = gi_of(slot);
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

/* Compute instances: the profiles up to the whole GPU instance are listed. One that spans it can be made, or some of one slice. */
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
    if (slices != (slot & SPANNING ? profiles[ROW(slot)].slices : 1)) return NVML_SUCCESS;
    for (int c = 0; c < SLOTS; c++)
        if (COMPUTE(slot) >> c & 1) out[(*count)++] = &compute_instances[gpu][at][c];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpuInstanceGetComputeInstanceById(instance handle, unsigned int id, instance *out) {
    ENTER_INSTANCE(handle, gpu_instances);
    NEED(out);
    if (id >= SLOTS || !(COMPUTE(slot) >> id & 1)) return NVML_ERROR_NOT_FOUND;
    *out = &compute_instances[gpu][at][id];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlGpuInstanceCreateComputeInstance(instance handle, unsigned int id, instance *out) {
    unsigned int slices;
    ENTER_INSTANCE(handle, gpu_instances);
    NEED(out);
    TRY(compute_profile(id, slot, &slices));
    int spans = slices == profiles[ROW(slot)].slices, ci = 0;
    if (!spans && slices != 1) return NVML_ERROR_NOT_SUPPORTED;
    if (slot & SPANNING || (spans && SMALL(slot))) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    while (!spans && SMALL(slot) >> ci & 1) ci++;
    if (ci >= (int)profiles[ROW(slot)].slices) return NVML_ERROR_INSUFFICIENT_RESOURCES;
    TRY(set_slot(gpu, at, slot | (spans ? SPANNING : 1u << (SMALL_SHIFT + ci))));
    *out = &compute_instances[gpu][at][ci];
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlComputeInstanceDestroy(instance handle) {
    ENTER_INSTANCE(handle, compute_instances);
    const int ci = handle->ci;
    if (!(COMPUTE(slot) >> ci & 1)) return NVML_ERROR_NOT_FOUND;
    if (in_use(gpu, gi_of(slot), (unsigned int)ci)) return NVML_ERROR_IN_USE;
    return set_slot(gpu, at, slot & ~(slot & SPANNING ? SPANNING : 1u << (SMALL_SHIFT + ci)));
}
NVML_API nvmlReturn nvmlComputeInstanceGetInfo_v2(instance handle, c_nvmlComputeInstanceInfo_t *out) {
    ENTER_INSTANCE(handle, compute_instances);
    const unsigned int ci = (unsigned int)handle->ci;
    NEED(out && COMPUTE(slot) >> ci & 1);
    out->device = &devices[gpu][at][ci];
    out->gpuInstance = &gpu_instances[gpu][at];
    out->id = ci;
    out->placement.start = ci;
    out->placement.size = slot & SPANNING ? profiles[ROW(slot)].slices : 1;
    for (out->profileId = 0; compute_slices[out->profileId] != out->placement.size;) out->profileId++;
    return NVML_SUCCESS;
}

/* What mig_devices.c answers from. */
int sim_is_mig(nvmlDevice device) { return AMONG(device, devices); }

int sim_mig_at(nvmlDevice device, struct sim_mig *out) {
    if (!sim_is_mig(device)) return 0;
    const instance handle = (instance)(void *)device;
    const unsigned int slot = slot_of(handle->gpu, handle->slot);
    memset(out, 0, sizeof *out);
    out->gpu = handle->gpu;
    out->slot = handle->slot;
    out->ci = (unsigned int)handle->ci;
    if (!(COMPUTE(slot) >> handle->ci & 1)) return 1; /* the instance was destroyed: its slices stay 0 */
    const struct profile *p = &profiles[ROW(slot)];
    out->gi = gi_of(slot);
    out->slices = p->slices;
    out->compute_slices = slot & SPANNING ? p->slices : 1;
    out->memory_slices = p->memory;
    out->sm = slot & SPANNING ? p->sm : p->sm / p->slices;
    out->profile = p->name + strlen("MIG ");
    return 1;
}

nvmlReturn sim_mig_instance(int gpu, unsigned int gi, int *compute) {
    TRY(enabled(gpu));
    for (int s = 0; s < SLOTS; s++)
        if (slot_of(gpu, s) && gi_of(slot_of(gpu, s)) == gi) {
            *compute = __builtin_popcount(COMPUTE(slot_of(gpu, s)));
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

nvmlDevice sim_mig_device(int gpu, unsigned int index) {
    for (int s = 0; s < SLOTS; s++)
        for (int c = 0; c < SLOTS; c++)
            if (COMPUTE(slot_of(gpu, s)) >> c & 1 && !index--) return (nvmlDevice)(void *)&devices[gpu][s][c];
    return NULL;
}
