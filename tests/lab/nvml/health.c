/* Error counters, row remapping, and the batch of field values. */
#include "sim.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SINGLE_BIT = 0, DOUBLE_BIT = 1, VOLATILE = 0, AGGREGATE = 1 };

NVML_API nvmlReturn nvmlDeviceGetTotalEccErrors(nvmlDevice device, unsigned int type, unsigned int counter,
                                                unsigned long long *out) {
    static const char *const keys[2][2] = {{"ecc.volatile_corrected", "ecc.aggregate_corrected"},
                                           {"ecc.volatile_uncorrected", "ecc.aggregate_uncorrected"}};
    ENTER_GPU();
    NEED(out && type < 2 && counter < 2);
    return sim_ull(gpu, keys[type][counter], out);
}

static nvmlReturn sram(int gpu, unsigned int type, unsigned int counter, unsigned long long *out) {
    unsigned long long parity, secded;
    if (type == SINGLE_BIT)
        return sim_ull(gpu, counter == VOLATILE ? "sram.volatile_corrected" : "sram.aggregate_corrected", out);
    TRY(sim_ull(gpu, counter == VOLATILE ? "sram.volatile_uncorrected_parity" : "sram.aggregate_uncorrected_parity", &parity));
    TRY(sim_ull(gpu, counter == VOLATILE ? "sram.volatile_uncorrected_secded" : "sram.aggregate_uncorrected_secded", &secded));
    *out = parity + secded;
    return NVML_SUCCESS;
}

/* Locations since Ampere: SRAM 7 and DRAM (2, "device memory"); the total less SRAM is DRAM. */
NVML_API nvmlReturn nvmlDeviceGetMemoryErrorCounter(nvmlDevice device, unsigned int type, unsigned int counter,
                                                    unsigned int location, unsigned long long *out) {
    static const char *const keys[2][2] = {{"ecc.volatile_corrected", "ecc.aggregate_corrected"},
                                           {"ecc.volatile_uncorrected", "ecc.aggregate_uncorrected"}};
    unsigned long long total, in_sram;
    ENTER_GPU_OR_MIG();
    NEED(out && type < 2 && counter < 2);
    if (divided) { /* nvidia-smi shows only this counter of a MIG device */
        if (location != NVML_MEMORY_LOCATION_SRAM || type != DOUBLE_BIT || counter != VOLATILE) return NVML_ERROR_NOT_SUPPORTED;
        return sim_mig_sram_uncorrected(&mig, out);
    }
    if (location == NVML_MEMORY_LOCATION_SRAM) return sram(gpu, type, counter, out);
    if (location != NVML_MEMORY_LOCATION_DEVICE_MEMORY) return NVML_ERROR_NOT_SUPPORTED;
    TRY(sim_ull(gpu, keys[type][counter], &total));
    if (sram(gpu, type, counter, &in_sram) != NVML_SUCCESS || in_sram > total) in_sram = 0;
    *out = total - in_sram;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetSramEccErrorStatus(nvmlDevice device, c_nvmlEccSramErrorStatus_v1_t *out) {
    c_nvmlEccSramErrorStatus_v1_t s;
    unsigned long long n[6];
    static const char *const keys[6] = {"sram.aggregate_uncorrected_parity", "sram.aggregate_uncorrected_secded",
        "sram.aggregate_corrected", "sram.volatile_uncorrected_parity", "sram.volatile_uncorrected_secded",
        "sram.volatile_corrected"};
    ENTER_GPU();
    NEED(out);
    if (out->version != (sizeof *out | 1u << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    memset(&s, 0, sizeof s);
    s.version = out->version;
    for (int i = 0; i < 6; i++) TRY(sim_ull(gpu, keys[i], &n[i]));
    s.aggregateUncParity = n[0];
    s.aggregateUncSecDed = n[1];
    s.aggregateCor = n[2];
    s.volatileUncParity = n[3];
    s.volatileUncSecDed = n[4];
    s.volatileCor = n[5];
    TRY(sim_uint(gpu, "sram.threshold_exceeded", &s.bThresholdExceeded));
    *out = s;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetRemappedRows(nvmlDevice device, unsigned int *corrected, unsigned int *uncorrected,
                                              unsigned int *pending, unsigned int *failed) {
    ENTER_GPU();
    NEED(corrected && uncorrected && pending && failed);
    TRY(sim_uint(gpu, "remap.corrected", corrected));
    TRY(sim_uint(gpu, "remap.uncorrected", uncorrected));
    TRY(sim_uint(gpu, "remap.pending", pending));
    return sim_uint(gpu, "remap.failed", failed);
}
NVML_API nvmlReturn nvmlDeviceGetRowRemapperHistogram(nvmlDevice device, c_nvmlRowRemapperHistogramValues *out) {
    ENTER_GPU();
    NEED(out);
    TRY(sim_uint(gpu, "remap.histogram.0", &out->max));
    TRY(sim_uint(gpu, "remap.histogram.1", &out->high));
    TRY(sim_uint(gpu, "remap.histogram.2", &out->partial));
    TRY(sim_uint(gpu, "remap.histogram.3", &out->low));
    return sim_uint(gpu, "remap.histogram.4", &out->none);
}

static nvmlReturn retired(int gpu, unsigned int cause, unsigned int *count, unsigned long long *addresses) {
    unsigned int there, room;
    NEED(count && cause < 2);
    TRY(sim_uint(gpu, cause == 0 ? "retired_pages.single_bit" : "retired_pages.double_bit", &there));
    room = *count;
    *count = there;
    if (!addresses || room < there) return there ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
    for (unsigned int i = 0; i < there; i++) addresses[i] = (unsigned long long)(i + 1) << 16;
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceGetRetiredPages(nvmlDevice device, unsigned int cause, unsigned int *count,
                                              unsigned long long *addresses) {
    ENTER_GPU();
    return retired(gpu, cause, count, addresses);
}
NVML_API nvmlReturn nvmlDeviceGetRetiredPages_v2(nvmlDevice device, unsigned int cause, unsigned int *count,
                                                 unsigned long long *addresses, unsigned long long *times) {
    ENTER_GPU();
    NEED(count);
    unsigned int room = *count;
    TRY(retired(gpu, cause, count, addresses));
    for (unsigned int i = 0; times && i < room && i < *count; i++) times[i] = 0;
    return NVML_SUCCESS;
}
/* Its answer is its return code: `error 14` as the value of inforom_valid is a corrupted one. */
NVML_API nvmlReturn nvmlDeviceValidateInforom(nvmlDevice device) {
    unsigned int valid;
    ENTER_GPU();
    return sim_uint(gpu, "inforom_valid", &valid);
}
NVML_API nvmlReturn nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice device, unsigned int *out) {
    ENTER_GPU();
    return sim_uint(gpu, "retired_pages.pending", out);
}

/* Field ids (all below 251: later ones were renumbered between driver branches) and where their values are. A '#' in
 * the key stands for the link number in scopeId; without one (scopeId UINT_MAX) or with '+' it is the sum of all links. */
struct field { unsigned int id, type; const char *key; };
#define U32 NVML_VALUE_TYPE_UNSIGNED_INT
#define U64 NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
static const struct field fields[] = {
    {NVML_FI_DEV_ECC_CURRENT, U32, "ecc_mode.current"},
    {NVML_FI_DEV_ECC_PENDING, U32, "ecc_mode.pending"},
    {NVML_FI_DEV_ECC_SBE_VOL_TOTAL, U64, "ecc.volatile_corrected"},
    {NVML_FI_DEV_ECC_DBE_VOL_TOTAL, U64, "ecc.volatile_uncorrected"},
    {NVML_FI_DEV_ECC_SBE_AGG_TOTAL, U64, "ecc.aggregate_corrected"},
    {NVML_FI_DEV_ECC_DBE_AGG_TOTAL, U64, "ecc.aggregate_uncorrected"},
    {NVML_FI_DEV_RETIRED_SBE, U64, "retired_pages.single_bit"},
    {NVML_FI_DEV_RETIRED_DBE, U64, "retired_pages.double_bit"},
    {NVML_FI_DEV_RETIRED_PENDING, U32, "retired_pages.pending"},
    {NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, U64, "nvlink.+.crc_errors"},
    {NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, U64, "nvlink.+.replay_errors"},
    {NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, U64, "nvlink.+.recovery_errors"},
    {NVML_FI_DEV_MEMORY_TEMP, U32, "temperature.memory_celsius"},
    {NVML_FI_DEV_NVLINK_LINK_COUNT, U32, "nvlink.count"},
    {NVML_FI_DEV_PCIE_REPLAY_COUNTER, U32, "pcie.replays"},
    {NVML_FI_DEV_REMAPPED_COR, U32, "remap.corrected"},
    {NVML_FI_DEV_REMAPPED_UNC, U32, "remap.uncorrected"},
    {NVML_FI_DEV_REMAPPED_PENDING, U32, "remap.pending"},
    {NVML_FI_DEV_REMAPPED_FAILURE, U32, "remap.failed"},
    {NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, U64, "nvlink.#.replay_errors"},
    {NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, U64, "nvlink.#.recovery_errors"},
    {NVML_FI_DEV_NVLINK_ERROR_DL_CRC, U64, "nvlink.#.crc_errors"},
    {NVML_FI_DEV_POWER_MIN_LIMIT, U32, "power.minimum_limit_milliwatts"},
    {NVML_FI_DEV_POWER_MAX_LIMIT, U32, "power.maximum_limit_milliwatts"},
    {NVML_FI_DEV_POWER_DEFAULT_LIMIT, U32, "power.default_limit_milliwatts"},
    {NVML_FI_DEV_POWER_CURRENT_LIMIT, U32, "power.limit_milliwatts"},
    {NVML_FI_DEV_POWER_REQUESTED_LIMIT, U32, "power.limit_milliwatts"},
    {NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, U64, "nvlink.#.malformed_packets"},
    {NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, U64, "nvlink.#.receive_errors"},
    {NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, U64, "nvlink.#.recoveries_failed"},
    {NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, U64, "nvlink.#.recoveries"},
    {NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, U64, "nvlink.#.effective_errors"},
    {NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, U64, "nvlink.#.effective_ber_code"},
    {NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, U64, "nvlink.#.symbol_ber_code"},
    {NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, U32, "recovery_action"},
};

static nvmlReturn over_links(int gpu, const char *key, unsigned int scope, unsigned long long *out) {
    const char *mark = strpbrk(key, "#+");
    char full[96];
    unsigned int links, first = scope, last = scope + 1;
    *out = 0;
    TRY(sim_uint(gpu, "nvlink.count", &links));
    if (!links) return NVML_ERROR_NOT_SUPPORTED;
    if (*mark == '+' || scope == 0xFFFFFFFFu) first = 0, last = links;
    else if (scope >= links) return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int link = first; link < last; link++) {
        unsigned long long value;
        snprintf(full, sizeof full, "%.*s%u%s", (int)(mark - key), key, link, mark + 1);
        TRY(sim_ull(gpu, full, &value));
        *out += value;
    }
    return NVML_SUCCESS;
}

/* Counters and means that follow from the loads (load.c). NVLinks carry equal parts; up to NVLink 4 they are counted in KiB. */
static nvmlReturn load_field(int gpu, c_nvmlFieldValue_t *v, unsigned long long *out) {
    unsigned int id = v->fieldId, milliwatts, version, links;
    if (id == NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION || id == NVML_FI_DEV_ENERGY)
        return load_counter(gpu, LOAD_POWER, "power.energy_millijoules", 1, out);
    if (id == NVML_FI_DEV_PCIE_COUNT_TX_BYTES) return load_counter(gpu, LOAD_PCIE, "pcie.transmit_bytes", 1, out);
    if (id == NVML_FI_DEV_PCIE_COUNT_RX_BYTES) return load_counter(gpu, LOAD_PCIE, "pcie.receive_bytes", 1, out);
    if (id == NVML_FI_DEV_POWER_AVERAGE || id == NVML_FI_DEV_POWER_INSTANT) {
        TRY(load_now(gpu, LOAD_POWER, "power.draw_milliwatts", &milliwatts));
        *out = milliwatts;
        return NVML_SUCCESS;
    }
    int newer = id == NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES || id == NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES;
    int older = id == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX || id == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX;
    if (!newer && !older) return NVML_ERROR_NOT_FOUND;
    TRY(sim_uint(gpu, "nvlink.count", &links));
    TRY(sim_uint(gpu, "nvlink.0.version", &version));
    if (!links || newer != (version >= 5)) return NVML_ERROR_NOT_SUPPORTED;
    if (v->scopeId != 0xFFFFFFFFu && v->scopeId >= links) return NVML_ERROR_INVALID_ARGUMENT;
    if (newer && v->scopeId == 0xFFFFFFFFu) return NVML_ERROR_INVALID_ARGUMENT;
    return load_counter(gpu, LOAD_NVLINK, NULL, (older ? 1.0 / 1024 : 1.0) / (v->scopeId == 0xFFFFFFFFu ? 1 : links), out);
}

static nvmlReturn one_field(int gpu, c_nvmlFieldValue_t *v) {
    unsigned long long of_load = 0;
    nvmlReturn rc = load_field(gpu, v, &of_load);
    if (rc != NVML_ERROR_NOT_FOUND) {
        int narrow = v->fieldId == NVML_FI_DEV_POWER_AVERAGE || v->fieldId == NVML_FI_DEV_POWER_INSTANT;
        v->valueType = narrow ? U32 : U64;
        if (narrow) v->value.uiVal = (unsigned int)of_load;
        else v->value.ullVal = of_load;
        return rc;
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const struct field *f = &fields[i];
        unsigned long long value;
        if (f->id != v->fieldId) continue;
        v->valueType = f->type;
        if (strpbrk(f->key, "#+")) TRY(over_links(gpu, f->key, v->scopeId, &value));
        else TRY(sim_ull(gpu, f->key, &value));
        if (f->type == U32) v->value.uiVal = (unsigned int)value;
        else v->value.ullVal = value;
        return NVML_SUCCESS;
    }
    unsigned long long events;
    TRY(sim_clock_field(gpu, v->fieldId, &events));
    v->valueType = U64;
    v->value.ullVal = events;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn nvmlDeviceGetFieldValues(nvmlDevice device, int count, c_nvmlFieldValue_t *values) {
    struct timespec now;
    ENTER_GPU();
    NEED(values && count > 0);
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        memset(&values[i].value, 0, sizeof values[i].value);
        values[i].timestamp = now.tv_sec * 1000000LL + now.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].valueType = 0;
        values[i].nvmlReturn = one_field(gpu, &values[i]); /* the call succeeds although entries failed */
    }
    return NVML_SUCCESS;
}
NVML_API nvmlReturn nvmlDeviceClearFieldValues(nvmlDevice device, int count, c_nvmlFieldValue_t *values) {
    ENTER_GPU();
    (void)gpu;
    NEED(values && count > 0);
    return NVML_SUCCESS;
}
