// Everything the kernel is told: pointers with their shapes and strides, sizes, flags. A plain struct without
// torch types; strides are in elements and may take any value. A tensor that is absent has a null pointer; so
// may one without elements, so flags say what the call has.
//
//   T   rows of q                      QH  query heads            D   head size of q and k
//   Tk  rows of k and v, Tk >= T       KH  key and value heads    Dv  head size of v
//   R   rotary_dim, even, in 2..D
//
// A call may have a part of this. Rotation alone: has_cache is false, v_head_size 0; without k KH is 0 and Tk
// is T. The cache write alone: T, QH and R are 0, so that all rows of k are final, and k_out is absent.
//
// Callers fill RopeCacheParams; the compact form (index_math.h) is made of it by the launcher. Members stand
// in the order in which a thread needs them: the first use of each 64 bytes of a launch's parameters costs a
// cache miss.
#pragma once

#include "cache_layout.h"
#include "dtype.h"
#include "fault_record.h"
#include "mrope.cuh"

namespace kvrope {

template <typename Index>
struct BasicHeadRows {  // (rows, heads, head size)
  void* data;
  Index token_stride, head_stride, dim_stride;
};

template <typename Index>
struct BasicIndexArray {  // (size,) of int32 or int64
  const void* data;
  Index size, byte_stride;
  bool is_int64;
};

template <typename Index>
struct BasicCosSinTable {  // (num_rows, R or 2R): cosines, then sines
  const void* data;
  Index num_rows, row_stride, column_stride;
  DType dtype;
  bool is_full_width;  // 2R columns
};

template <typename Index>
struct BasicNormWeight {  // (D,); null: heads are not normed
  const void* data;
  Index stride;
  bool is_fp32;  // else as q
};

struct ScaleArray {  // fp32: one per head, or one for all with head_stride 0
  const float* data;
  int64_t head_stride;
};

template <typename Index>
struct BasicPagedCache {
  void* data;
  BasicCacheLayout<Index> layout;
};

template <typename Index>
struct BasicRopeCacheParams {
  Index num_tokens;   // T
  Index num_kv_rows;  // Tk
  int num_q_heads, num_kv_heads;
  int head_size, v_head_size;
  int rotary_dim, rotary_dim_offset;
  bool has_cache;  // false: rotation alone; v, the caches, slots and scales are not looked at
  bool has_swa;    // slots go through swa_slot_mapping
  bool has_offs;
  bool is_neox;
  bool match_unfused;  // round K to dtype before the cache, divide by the scales
  DType dtype;         // of q, k, v, k_out, zeros_out
  DType cache_dtype;   // dtype, or one of fp8

  BasicIndexArray<Index> pos;           // (T,); mRoPE: (3, T), this is the first row
  BasicCosSinTable<Index> cos_sin;      // (P, W)
  BasicHeadRows<Index> q, q_out;        // (T, QH, D)
  BasicIndexArray<Index> slot_mapping;  // (T_slot,), T_slot <= Tk
  Index num_slots;                      // blocks * block size of both caches
  Divisor<Index> block_size;
  BasicHeadRows<Index> v;              // (Tk, KH, Dv)
  BasicPagedCache<Index> value_cache;  // its layout does not split the head dimension
  BasicHeadRows<Index> k, k_out;       // (Tk, KH, D)
  BasicPagedCache<Index> key_cache;
  ScaleArray k_scale, v_scale;                // () or (KH,)
  BasicIndexArray<Index> offs;                // (T,)
  BasicIndexArray<Index> swa_slot_mapping;    // (N,)
  BasicHeadRows<Index> zeros_out;             // (T, QH, D)
  FaultRecord* fault_record;                  // device memory; may be null: faults are then not recorded
  BasicNormWeight<Index> q_weight, k_weight;  // (D,): RMSNorm of each head before its rotation (rms_norm.cuh)
  float norm_eps, inverse_head_size;          // of the norms; 1 / D
  Index pos_axis_stride;  // from one row of pos (3, T) to the next; 0: one position for all axes
  bool weight_plus_one;   // heads are multiplied by 1 + weight
  DType q_out_dtype;      // one of fp8: cast(x * (1 / q_scale)); anything else: as q
  ScaleArray q_scale;     // () or (KH,)
  FrequencyAxes axes;     // (R/2,)
};

using HeadRows = BasicHeadRows<int64_t>;
using IndexArray = BasicIndexArray<int64_t>;
using CosSinTable = BasicCosSinTable<int64_t>;
using NormWeight = BasicNormWeight<int64_t>;
using PagedCache = BasicPagedCache<int64_t>;
using RopeCacheParams = BasicRopeCacheParams<int64_t>;
using CompactParams = BasicRopeCacheParams<uint32_t>;

}  // namespace kvrope
