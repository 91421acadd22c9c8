// The compact form of the parameters (index_math.h).
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

// In elements. Strides of indices and of rows of the table are turned into bytes, of at most 8 an element.
constexpr int64_t kMaxStrideInBytes = 0x7fffffff / 8;

// Whether every stride and size fits.
bool is_compact(const RopeCacheParams& params);

CompactParams make_compact(const RopeCacheParams& params);

// Whether a compact call has the sizes, rows and tables of most calls (plain_call.cuh): every head rotated
// whole by an fp32 table of half width, values of the same head size, a slot for every row, both outputs,
// scales for fp8 alone; no offsets, window, zeros_out or match_unfused.
bool has_plain_form(const RopeCacheParams& params);

bool is_normed(const RopeCacheParams& params);

// Whether a call asks for what newer models do to a head on its way: RMSNorm, mRoPE, queries in fp8. A plain
// call has the form and does not.
bool has_extensions(const RopeCacheParams& params);

}  // namespace kvrope
