// v, from some number of rows on (takes_tiles, launch_plan.cpp), for caches in which the head dimensions of a
// row lie apart: x-split and shuffled values, and any other whose last stride is not 1. They never split the
// head dimension. A block takes one head of a tile of neighbouring tokens, or where tiles are few a part of
// its dimensions, transposes it in shared memory and stores along slots:
//
//   rows of v      token 0: d0 d1 d2 ...       shared memory      value cache     d0: s0 s1 s2 ...
//                  token 1: d0 d1 d2 ...   ->  [token][dim]   ->                  d1: s0 s1 s2 ...
//                  ...
//
// Tokens of a prefill have neighbouring slots. A group of tokens that fills an aligned 16 bytes of one head
// dimension is stored as one vector: a run. Other groups are stored element by element: lanes go along tokens
// where slots are neighbours, to fill sectors together, and along head dimensions where slots are scattered.
#pragma once

#include "cache_row.cuh"
#include "dependent_launch.cuh"
#include "last_of_slot.cuh"
#include "launch_plan.h"
#include "row_indices.cuh"

namespace kvrope {

#ifdef __CUDACC__  // the host has its own (tests/cpp/host_cuda.h)
__device__ __forceinline__ void* dynamic_shared_memory() {
  extern __shared__ uint4 memory[];
  return memory;
}
#endif

template <typename Index>
struct ValueTile {
  Index first_token;
  int num_tokens;  // fewer at the end; 0 where there is no tile
  int head;
  int first_dim, num_dims;
};

// Blocks of one blockIdx.y serve the tiles of parts_per_tile_block parts, one part after the other: head 0
// has the first ones.
template <typename Index>
__device__ __forceinline__ ValueTile<Index> tile_of_block(const BasicRopeCacheParams<Index>& p,
                                                          const LaunchPlan& plan, int block_y) {
  const int nth = static_cast<int>(plan.num_tiles.quotient(blockIdx.x));
  const Index tile = blockIdx.x - static_cast<uint32_t>(nth) * plan.num_tiles.divisor;
  const int nth_part = block_y * plan.parts_per_tile_block + nth;
  const int head = nth_part >> plan.tile_parts_log2, part = nth_part - (head << plan.tile_parts_log2);
  const Index first = tile * kTileTokens, tokens = kTileTokens;
  const Index left = p.num_kv_rows - first;
  const int first_dim = part * plan.tile_dims, dims_left = p.v_head_size - first_dim;
  const bool exists = nth < plan.parts_per_tile_block && head < p.num_kv_heads && dims_left > 0;
  return {first, exists ? static_cast<int>(left < tokens ? left : tokens) : 0, head, first_dim,
          dims_left < plan.tile_dims ? dims_left : plan.tile_dims};
}

// Where the first dimension of a tile is kept of a token, in elements from the start of the cache; -1:
// nowhere.
template <typename Index, typename Params>
__device__ __forceinline__ int64_t place_of(const Params& p, const PendingKvRow<Params>& row,
                                            const ValueTile<Index>& tile) {
  const CheckedIndex<Index> slot = row.slot(p);
  if (!slot.is_valid || !row.position(p).is_valid) return -1;
  const SlotInBlock<Index> at = locate(slot.value, p.block_size);
  const BasicCacheLayout<Index>& layout = p.value_cache.layout;
  return layout.row_offset(at.block, at.offset, tile.head) +
         product(static_cast<Index>(tile.first_dim), layout.dim_outer_stride);
}

// In calls that keep the last of a slot (last_of_slot.cuh): whether one of the later rows that a thread looks
// at may ask for the slot of a token before it, by the lower halves of the tokens' slots: goes_to_later_row
// decides. Four at a time: instructions that are fetched once take longer than those that run again.
template <typename Params, int kCount>
__device__ __forceinline__ bool may_ask_for_one(const Params& p, const LaterSlots<Params, kCount>& later,
                                                const uint4* low_slots) {
  bool may_ask = false;
#pragma unroll 1
  for (int token = 0; token < kTileTokens; token += 4) {
    const uint4 slots = low_slots[token / 4];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int num_before = later.distance(j) - token;
      const uint32_t slot = later.slots[j].low_half();
      const bool is_one = (num_before > 0 && slots.x == slot) || (num_before > 1 && slots.y == slot) ||
                          (num_before > 2 && slots.z == slot) || (num_before > 3 && slots.w == slot);
      may_ask |= is_one && later.slots[j].is_below(p.num_slots);
    }
  }
  return may_ask;
}

// Forgets the places of tokens whose slot a later row gets. All threads of the block come here, each with the
// slot of its own token.
template <typename Params, typename Index>
__device__ __forceinline__ void leave_to_later_rows(const Params& p, const ValueTile<Index>& tile, int thread,
                                                    const CheckedIndex<Index>& slot, bool sees_one,
                                                    int64_t* places) {
  if (!__syncthreads_or(sees_one)) return;
  constexpr int kMaxAxes = kNumAxesOf<kMaybeExtended<Params>>;
  if (thread < tile.num_tokens && slot.is_valid &&
      goes_to_later_row<kMaxAxes, Index>(p, tile.first_token + static_cast<Index>(thread), slot.value)) {
    places[thread] = -1;
  }
  __syncthreads();
}

// In words: rows of the tile are aligned to no more.
template <typename CacheT, int kVec>
__device__ __forceinline__ void stage(CacheT* to, const Vec<CacheT, kVec>& x) {
  using Word = typename Vec<CacheT, kVec>::Word;
#pragma unroll
  for (int j = 0; j < Vec<CacheT, kVec>::kWords; ++j) reinterpret_cast<Word*>(to)[j] = x.words[j];
}

template <typename T, typename CacheT, int kVec, typename Params, typename Index>
__device__ __forceinline__ void stage_rows(const Params& p, const LaunchPlan& plan,
                                           const ValueTile<Index>& tile, int thread, CacheT* staged) {
  const int row_threads = static_cast<int>(plan.row_threads.divisor);
  const int first_row = static_cast<int>(plan.row_threads.quotient(static_cast<uint32_t>(thread)));
  const int at_once = plan.tokens_per_block * plan.rows_at_once;
  const SliceDims dims = slice_dims<kVec>({tile.num_dims, 0, 0}, true, thread - first_row * row_threads);
  if (!dims.has_lo) return;
  const CacheScale scale = scale_of_head<T, CacheT>(p, p.v_scale, tile.head);
  constexpr int kAtOnce = 2;  // on their way together
#pragma unroll 1
  for (int first = first_row; first < tile.num_tokens; first += kAtOnce * at_once) {
    HeadSlice<T, kVec> x[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int row = first + j * at_once;
      if (row >= tile.num_tokens) continue;
      const T* from = head_of<const T>(p.v, static_cast<Index>(tile.first_token + row), tile.head) +
                      product(static_cast<Index>(tile.first_dim), p.v.dim_stride);
      x[j] = load_slice<T, kVec>(from, p.v.dim_stride, dims);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int row = first + j * at_once;
      if (row >= tile.num_tokens) continue;
      const HeadSlice<CacheT, kVec> stored = to_cache_type<CacheT>(scale, x[j], widen(x[j]));
      stage(staged + row * plan.tile_pitch + dims.lo, stored.lo);
      if (dims.has_hi) stage(staged + row * plan.tile_pitch + dims.hi, stored.hi);
    }
  }
}

// The tokens of a tile whose elements of one head dimension fill 16 bytes, and this thread among those that
// store them.
template <typename CacheT>
struct TokenGroup {
  static constexpr int kTokens = 16 / static_cast<int>(sizeof(CacheT));
  const CacheT* rows;
  const int64_t* places;
  int num_dims;
  int member, num_members;

  __device__ __forceinline__ int num_neighbours() const {
    int count = 0;
#pragma unroll
    for (int i = 1; i < kTokens; ++i) count += places[i - 1] >= 0 && places[i] == places[i - 1] + 1;
    return count;
  }
};

template <typename CacheT, typename Index>
__device__ __forceinline__ void store_run(const BasicRopeCacheParams<Index>& p, const LaunchPlan& plan,
                                          const TokenGroup<CacheT>& group) {
  constexpr int kRun = TokenGroup<CacheT>::kTokens;
  CacheT* to = static_cast<CacheT*>(p.value_cache.data) + group.places[0];
#pragma unroll 1
  for (int dim = group.member; dim < group.num_dims; dim += group.num_members) {
    Vec<CacheT, kRun> run;
#pragma unroll
    for (int i = 0; i < kRun; ++i) run.set(i, group.rows[i * plan.tile_pitch + dim]);
    store_vec_once(to + product(static_cast<Index>(dim), p.value_cache.layout.dim_outer_stride), run);
  }
}

template <typename CacheT, typename Index>
__device__ __forceinline__ void store_scattered(const BasicRopeCacheParams<Index>& p, const LaunchPlan& plan,
                                                const TokenGroup<CacheT>& group, bool along_tokens) {
  constexpr int kTokens = TokenGroup<CacheT>::kTokens;
  const auto store = [&](int token, int dim) {
    if (group.places[token] < 0) return;
    const int64_t offset = product(static_cast<Index>(dim), p.value_cache.layout.dim_outer_stride);
    static_cast<CacheT*>(p.value_cache.data)[group.places[token] + offset] =
        group.rows[token * plan.tile_pitch + dim];
  };
  if (along_tokens) {
#pragma unroll 4
    for (int i = group.member; i < group.num_dims * kTokens; i += group.num_members) {
      store(i % kTokens, i / kTokens);
    }
    return;
  }
#pragma unroll 1
  for (int dim = group.member; dim < group.num_dims; dim += group.num_members) {
#pragma unroll 4
    for (int token = 0; token < kTokens; ++token) store(token, dim);
  }
}

template <typename T, typename CacheT, int kVec, typename Params>
__device__ __forceinline__ void value_tile(const Params& p, const LaunchPlan& plan, int block) {
  using Index = IndexOf<Params>;
  __shared__ int64_t places[kTileTokens];
  __shared__ uint4 low_slots[kTileTokens / 4];                     // lower halves of the slots of its tokens
  CacheT* staged = static_cast<CacheT*>(dynamic_shared_memory());  // kTileTokens rows of tile_pitch elements
  const ValueTile<Index> tile = tile_of_block<Index>(p, plan, block);
  if (tile.num_tokens == 0) return;
  const int thread = thread_rank();
  wait_for_earlier_kernels();
  const bool has_token = thread < tile.num_tokens;
  const PendingKvRow<Params> row(p, tile.first_token + static_cast<Index>(has_token ? thread : 0));
  const LaterSlots<Params, later_rows_per_thread(kVec * sizeof(T))> later(p, plan, tile.first_token, thread,
                                                                          plan.num_threads());
  stage_rows<T, CacheT, kVec>(p, plan, tile, thread, staged);
  if (thread < kTileTokens) {
    places[thread] = has_token ? place_of<Index>(p, row, tile) : -1;
    reinterpret_cast<uint32_t*>(low_slots)[thread] = row.pending_slot().low_half();
  }
  __syncthreads();
  if (plan.keeps_last_of_slot) {
    leave_to_later_rows(p, tile, thread, row.slot(p), may_ask_for_one(p, later, low_slots), places);
  }

  constexpr int kTokens = TokenGroup<CacheT>::kTokens, kGroups = kTileTokens / kTokens;
  const int first = thread % kGroups * kTokens;
  const TokenGroup<CacheT> group = {staged + first * plan.tile_pitch, places + first, tile.num_dims,
                                    thread / kGroups, plan.num_threads() / kGroups};
  if (group.member >= group.num_members) return;
  const int num_neighbours = group.num_neighbours();
  const bool is_run = plan.stores_runs && num_neighbours == kTokens - 1;
  if (is_run && group.places[0] % kTokens == 0) {
    store_run<CacheT, Index>(p, plan, group);
  } else {
    store_scattered<CacheT, Index>(p, plan, group, 2 * num_neighbours >= kTokens);
  }
}

}  // namespace kvrope
