// What a call asks for, in the terms by which its form is chosen (CallForm, launch_plan.h).
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

// Whether a call has the rows of most calls: a position and a slot for every row, keys and values, scales for
// fp8 alone, a table of half width, no match_unfused.
bool has_usual_options(const RopeCacheParams& params);

// Whether a call with usual options asks for nothing else but extensions and heads rotated in part, from
// their first element on: an fp32 table, values of the same head size, both outputs; no offsets, window or
// zeros_out.
bool has_plain_options(const RopeCacheParams& params);

bool is_rotated_whole(const RopeCacheParams& params);

bool is_normed(const RopeCacheParams& params);

// Whether a call asks for what newer models do to a head on its way: RMSNorm, mRoPE, queries in fp8.
bool has_extensions(const RopeCacheParams& params);

}  // namespace kvrope
