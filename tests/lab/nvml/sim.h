/* The simulated NVML library: what its source files share. Values and faults come from files (store.c). */
#ifndef FAIRLEAD_SIM_H
#define FAIRLEAD_SIM_H

#include "nvml_layout.h"

typedef unsigned int nvmlReturn;
typedef struct sim_device *nvmlDevice;
typedef struct sim_event_set *nvmlEventSet;

#define NVML_API __attribute__((visibility("default")))
#define SIM_GPUS 64
#define SIM_TEXT 512
#define NO_GPU (-1)
#define ANY_GPU (-2)

struct sim_device { /* a handle is the address of one of these, so any other pointer is seen to be invalid */
    int index;
};
extern struct sim_device sim_devices[SIM_GPUS];

struct sim_xid {
    int gpu;
    unsigned long long code;
};

/* store.c: the table of values */
nvmlReturn sim_load(void);
void sim_refresh(void);
nvmlReturn sim_text(int gpu, const char *key, char *out, size_t size);
nvmlReturn sim_number(int gpu, const char *key, long long *out);
nvmlReturn sim_uint(int gpu, const char *key, unsigned int *out);
nvmlReturn sim_ull(int gpu, const char *key, unsigned long long *out);
nvmlReturn sim_copy_text(int gpu, const char *key, char *out, unsigned int size);
int sim_gpu_count(void);
nvmlReturn sim_append_set(int gpu, const char *key, long long value);
nvmlReturn sim_append_inforom(int gpu, const char *key, long long value);
long sim_xid_count(void);
int sim_xid_at(long number, struct sim_xid *out);

/* mig.c and mig_devices.c */
#define SIM_MIG_DEVICES 7 /* what nvmlDeviceGetMaxMigDeviceCount says of GPUs with seven slices */
#define NO_INSTANCE 0xFFFFFFFFu
struct sim_mig { /* a MIG device; its slices are 0 if its instance was destroyed */
    int gpu, slot;
    unsigned int gi, ci, slices, compute_slices, memory_slices, sm;
    const char *profile;
};
struct sim_memory {
    unsigned long long total, reserved, used;
};
int sim_is_mig(nvmlDevice device);
int sim_mig_at(nvmlDevice device, struct sim_mig *out); /* 0 if the handle is no MIG device's */
nvmlDevice sim_mig_device(int gpu, unsigned int index); /* NULL if there are fewer */
nvmlDevice sim_mig_by_uuid(const char *uuid);
nvmlReturn sim_mig_uuid(const struct sim_mig *mig, char *out, size_t size);
nvmlReturn sim_mig_name(const struct sim_mig *mig, char *out, size_t size);
nvmlReturn sim_mig_memory(const struct sim_mig *mig, struct sim_memory *out);
nvmlReturn sim_mig_sram_uncorrected(const struct sim_mig *mig, unsigned long long *out);
nvmlReturn sim_mig_instance(int gpu, unsigned int gi, int *compute); /* NOT_FOUND, or how many compute instances it has */
void sim_process_instance(int gpu, unsigned int number, unsigned int at[2]); /* GI and CI, or NO_INSTANCE */

/* load.c: what the GPUs did */
#define PERIOD_US 166667u /* of utilisation: nvml.h names 1/6 second to 1 second */
enum load_kind { LOAD_BUSY, LOAD_SM, LOAD_TENSOR, LOAD_DRAM, LOAD_POWER, LOAD_PCIE, LOAD_NVLINK };
unsigned long long sim_now(void); /* microseconds of CLOCK_REALTIME */
void load_clear(void);
void load_add(const char *gpu, char *words);
void load_reload(int gpu, unsigned long long at);
unsigned long long load_began(int gpu);
int load_known(int gpu);
double load_sum(int gpu, unsigned int gi, enum load_kind kind, unsigned long long from, unsigned long long to);
nvmlReturn load_now(int gpu, enum load_kind kind, const char *key, unsigned int *out);
nvmlReturn load_counter(int gpu, enum load_kind kind, const char *key, double scale, unsigned long long *out);

/* clocks.c */
nvmlReturn sim_megahertz(int gpu, unsigned int kind, int highest, unsigned int *out);
nvmlReturn sim_clock_field(int gpu, unsigned int id, unsigned long long *out);

/* faults.c: what goes wrong, and the way into every call */
enum fault_kind { FAULT_ERROR, FAULT_DELAY, FAULT_HANG, FAULT_DSTATE, FAULT_CRASH };
void fault_add(enum fault_kind kind, const char *call, int gpu, long number, const char *path);
void fault_lift(void);
void fault_clear(void);
void fault_lose(int gpu, int handle_too);
int fault_handle_lost(int gpu);
void fault_lock_read(void);
void fault_lock_write(void);
void fault_unlock(void);
void sim_set_initialised(int change);
nvmlReturn sim_begin(const char *call); /* initialised, files looked at */
nvmlReturn sim_suffer(const char *call, int gpu); /* the faults declared for this call */
nvmlReturn sim_enter(const char *call); /* both */
int sim_index(nvmlDevice device);
nvmlReturn sim_enter_gpu(const char *call, nvmlDevice device, int *gpu, int answers_when_lost);

#define ENTER()                                \
    do {                                       \
        nvmlReturn rc_ = sim_enter(__func__);  \
        if (rc_ != NVML_SUCCESS) return rc_;   \
    } while (0)
#define ENTER_WITH(device_, lost_ok)                                           \
    int gpu;                                                                   \
    do {                                                                       \
        nvmlReturn rc_ = sim_enter_gpu(__func__, (device_), &gpu, (lost_ok));  \
        if (rc_ != NVML_SUCCESS) return rc_;                                   \
    } while (0)
#define ENTER_GPU() ENTER_WITH(device, 0)
/* For calls that answer for MIG devices too: sets gpu, and mig.slices if the handle is a MIG device's. */
#define ENTER_GPU_OR_MIG()                                                                                       \
    int gpu, divided;                                                                                            \
    struct sim_mig mig = {0};                                                                                    \
    do {                                                                                                         \
        divided = sim_mig_at(device, &mig);                                                                      \
        TRY(sim_enter_gpu(__func__, divided ? &sim_devices[mig.gpu] : device, &gpu, 0));                         \
        if (divided) (void)sim_mig_at(device, &mig); /* again, because the files were only now looked at */      \
    } while (0)
#define NEED(pointer)                                       \
    do {                                                    \
        if (!(pointer)) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)
#define TRY(expression)                          \
    do {                                         \
        nvmlReturn rc_ = (expression);           \
        if (rc_ != NVML_SUCCESS) return rc_;     \
    } while (0)

#define NVML_STUB(name)                     \
    NVML_API nvmlReturn name(void);         \
    NVML_API nvmlReturn name(void) {        \
        ENTER();                            \
        return NVML_ERROR_NOT_SUPPORTED;    \
    }

#endif
