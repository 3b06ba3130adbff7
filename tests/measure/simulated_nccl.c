/* A libnccl.so.2 and a libcuda.so.1 in one file, for machines without a GPU: an all-reduce of float32 over processes that share
 * a folder. The unique id is the folder's path. FAIRLEAD_SIM_NCCL: the folder above it. FAIRLEAD_SIM_NCCL_FAULT=wrong: one sum of
 * the last rank is off by 0.001; FAIRLEAD_SIM_NCCL_FAULT=nan: it is no number. Signatures: nccl.h 2.30.7, CUDA driver API. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default"))) int
typedef struct { char internal[128]; } unique_id;
typedef struct { char folder[128]; int ranks, rank, calls; } communicator;

API ncclGetVersion(int *version) { *version = 22903; return 0; }
API cuInit(unsigned flags) { return flags != 0; }
API cuDeviceGetCount(int *count) { *count = 8; return 0; }
API cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal < 0 || ordinal >= 8; }
API cuDevicePrimaryCtxRetain(void **context, int device) { *context = &cuInit; return device < 0; }
API cuCtxSetCurrent(void *context) { return !context; }
API cuCtxSynchronize(void) { return 0; }
API cuMemAlloc_v2(unsigned long long *pointer, size_t size) {
    *pointer = (unsigned long long)malloc(size);
    return !*pointer;
}
API cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t size) { memcpy((void *)to, from, size); return 0; }
API cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) { memcpy(to, (void *)from, size); return 0; }

API ncclGetUniqueId(unique_id *id) {
    const char *above = getenv("FAIRLEAD_SIM_NCCL");
    snprintf(id->internal, sizeof id->internal, "%s/comm-XXXXXX", above ? above : "/tmp");
    return !mkdtemp(id->internal);
}
API ncclCommInitRank(communicator **comm, int ranks, unique_id id, int rank) {
    communicator *made = malloc(sizeof *made);
    memcpy(made->folder, id.internal, sizeof made->folder);
    made->ranks = ranks;
    made->rank = rank;
    made->calls = 0;
    *comm = made;
    return rank < 0 || rank >= ranks || access(made->folder, W_OK);
}
static void path_of(char *path, communicator *comm, int rank, const char *end) {
    snprintf(path, 256, "%s/%d.%d%s", comm->folder, comm->calls, rank, end);
}
API ncclAllReduce(const float *from, float *to, size_t count, int type, int operation, communicator *comm, void *stream) {
    const char *fault = getenv("FAIRLEAD_SIM_NCCL_FAULT");
    char path[256], final[256];
    float *sum = calloc(count, sizeof *sum), *other = malloc(count * sizeof *other);
    FILE *file;
    if (type != 7 || operation || stream) return 4;
    path_of(path, comm, comm->rank, ".new");
    path_of(final, comm, comm->rank, "");
    if (!(file = fopen(path, "wb")) || fwrite(from, sizeof *from, count, file) != count || fclose(file)) return 2;
    if (rename(path, final)) return 2;
    for (int rank = 0; rank < comm->ranks; rank++) {
        path_of(path, comm, rank, "");
        for (int tries = 0; access(path, R_OK); tries++) {
            if (tries > 6000) return 6;
            usleep(10000);
        }
        if (!(file = fopen(path, "rb")) || fread(other, sizeof *other, count, file) != count) return 2;
        fclose(file);
        for (size_t i = 0; i < count; i++) sum[i] += other[i];
    }
    if (fault && comm->rank == comm->ranks - 1) sum[count - 1] = strcmp(fault, "nan") ? sum[count - 1] + 0.001f : NAN;
    memcpy(to, sum, count * sizeof *sum);
    comm->calls++;
    free(sum);
    free(other);
    return 0;
}
