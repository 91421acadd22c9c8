// The compact form of the parameters (index_math.h).
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

// The stride of rows of the table is turned into bytes, of at most 4 an element.
constexpr int64_t kMaxByteAddressedStride = 0x7fffffff / 4;

// Whether every stride and size fits.
bool is_compact(const RopeCacheParams& params);

CompactParams make_compact(const RopeCacheParams& params);

// Whether a compact call has the rows of most calls: a position and a slot for every row, keys and values,
// scales for fp8 alone, a table of half width, no match_unfused.
bool has_usual_form(const RopeCacheParams& params);

// Whether a call of the usual form asks for nothing beyond it but extensions and heads rotated in part, from
// their first element on: an fp32 table, values of the same head size, both outputs; no offsets, window or
// zeros_out.
bool has_plain_options(const RopeCacheParams& params);

bool is_rotated_whole(const RopeCacheParams& params);

bool is_normed(const RopeCacheParams& params);

// Whether a call asks for what newer models do to a head on its way: RMSNorm, mRoPE, queries in fp8. A plain
// call does not, has plain options and is rotated whole.
bool has_extensions(const RopeCacheParams& params);

}  // namespace kvrope
