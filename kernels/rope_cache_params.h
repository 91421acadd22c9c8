// Everything the kernel is told: pointers with their shapes and strides, sizes, flags. A plain struct without torch
// types; strides are in elements and may take any value. A tensor that
// is absent has a null pointer; so may one without elements, wherefore flags say what the call has.
//
//   T   rows of q                      QH  query heads            D   head size of q and k
//   Tk  rows of k and v, Tk >= T       KH  key and value heads    Dv  head size of v
//   R   rotary_dim, even, in 2..D
#pragma once

#include "cache_layout.h"
#include "dtype.h"
#include "fault_record.h"

namespace kvrope {

struct HeadRows {  // (rows, heads, head size)
  void* data;
  int64_t token_stride, head_stride, dim_stride;
};

struct IndexArray {  // (size,) of int32 or int64
  const void* data;
  int64_t size, stride;
  bool is_int64;
};

struct CosSinTable {  // (num_rows, R or 2R): cosines, then sines
  const void* data;
  int64_t num_rows, row_stride, column_stride;
  DType dtype;
};

struct ScaleArray {  // fp32: one per head, or one for all with head_stride 0
  const float* data;
  int64_t head_stride;
};

struct PagedCache {
  void* data;
  CacheLayout layout;
};

struct RopeCacheParams {
  HeadRows q, q_out, zeros_out;  // (T, QH, D)
  HeadRows k, k_out;             // (Tk, KH, D)
  HeadRows v;                    // (Tk, KH, Dv)
  PagedCache key_cache;
  PagedCache value_cache;
  ScaleArray k_scale, v_scale;  // () or (KH,)
  IndexArray slot_mapping;      // (T_slot,), T_slot <= Tk
  IndexArray swa_slot_mapping;  // (N,)
  IndexArray pos, offs;         // (T,)
  CosSinTable cos_sin;          // (P, W)

  int64_t num_tokens;   // T
  int64_t num_kv_rows;  // Tk
  int64_t num_slots;    // blocks * block size of both caches
  int64_t block_size;
  int num_q_heads, num_kv_heads;
  int head_size, v_head_size;
  int rotary_dim, rotary_dim_offset;

  DType dtype;        // of q, k, v, k_out, zeros_out, q_out
  DType cache_dtype;  // dtype, or one of fp8
  bool has_cache;   // false: rotation alone; the caches, slots and scales are not looked at
  bool has_swa;     // slots go through swa_slot_mapping
  bool has_offs;
  bool is_neox;
  bool is_full_width_table;
  bool match_unfused;  // round K to dtype before the cache, divide by the scales

  FaultRecord* fault_record;  // device memory; may be null: faults are then not recorded
};

}  // namespace kvrope
