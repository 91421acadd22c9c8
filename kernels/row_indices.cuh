// The scheduler's numbers of one row, loaded before anything waits for one of them: position and slot are on
// their way at the same time as the row's elements. What few calls ask for (offsets, windows) is out of line.
#pragma once

#include "plain_call.cuh"
#include "slots.cuh"

namespace kvrope {

// An index as it stands in memory, int32 or int64. Whoever asks it waits for it. Where indices have 32 bits
// no limit is above 2^31 - 1, so that a negative int32 is below none as it is.
template <typename Index>
class PendingIndex {
 public:
  PendingIndex() = default;

  // Below no limit where it is not inside.
  __device__ __forceinline__ PendingIndex(const BasicIndexArray<Index>& array, Index i, bool is_inside) {
    const Index stride_bytes = array.stride << (array.is_int64 ? 3 : 2);
    const auto* from =
        reinterpret_cast<const uint32_t*>(static_cast<const char*>(array.data) + product(i, stride_bytes));
    if (is_inside) low_ = from[0];
    if (is_inside && array.is_int64) high_ = from[1];
    if (kIsWide && !array.is_int64) high_ = static_cast<uint32_t>(static_cast<int32_t>(low_) >> 31);
  }

  __device__ __forceinline__ bool is_below(Index limit) const {
    if constexpr (kIsWide) return is_index(static_cast<int64_t>(value()), limit);
    return high_ == 0 && low_ < limit;
  }

  // Of one that is below a limit.
  __device__ __forceinline__ Index value() const {
    if constexpr (kIsWide) return static_cast<Index>(uint64_t{high_} << 32 | low_);
    return static_cast<Index>(low_);
  }

 private:
  static constexpr bool kIsWide = sizeof(Index) > 4;

  uint32_t low_ = 0xffffffffu, high_ = kIsWide ? 0xffffffffu : 0u;
};

template <typename Index>
struct CheckedIndex {
  bool is_valid;
  Index value;
};

template <typename Index>
__device__ __noinline__ CheckedIndex<Index> position_with_offset(const BasicRopeCacheParams<Index>& p,
                                                                 Index row) {
  const int64_t position = effective_position(p, row);
  return {is_in_table(p, position), static_cast<Index>(position)};
}

template <typename Params, typename Index>
__device__ __forceinline__ CheckedIndex<Index> checked_position(const Params& p, Index row,
                                                                const PendingIndex<Index>& pos) {
  if (has_offs(p)) return position_with_offset<Index>(p, row);
  return {pos.is_below(p.cos_sin.num_rows), pos.value()};
}

template <typename Index>
__device__ __noinline__ CheckedIndex<Index> slot_behind_window(const BasicRopeCacheParams<Index>& p,
                                                               Index row) {
  const int64_t slot = cache_slot(p, row);
  return {slot >= 0, static_cast<Index>(slot)};
}

template <typename Params, typename Index>
__device__ __forceinline__ CheckedIndex<Index> checked_slot(const Params& p, Index row,
                                                            const PendingIndex<Index>& slot) {
  if (has_window(p)) return slot_behind_window<Index>(p, row);
  return {slot.is_below(p.num_slots), slot.value()};
}

// Those of a row of k and v. KV-only rows have no position and need none.
template <typename Params>
class PendingKvRow {
 public:
  using Index = IndexOf<Params>;

  __device__ __forceinline__ PendingKvRow(const Params& p, Index row)
      : row_(row), pos_(p.pos, row, is_token(p, row)), slot_(p.slot_mapping, row, has_slot(p, row)) {}

  __device__ __forceinline__ CheckedIndex<Index> position(const Params& p) const {
    if (!is_token(p, row_)) return {true, 0};
    return checked_position(p, row_, pos_);
  }

  __device__ __forceinline__ CheckedIndex<Index> slot(const Params& p) const {
    return checked_slot(p, row_, slot_);
  }

  // Valid where the row is cached, later rows aside.
  __device__ __forceinline__ CheckedIndex<Index> cached_slot(const Params& p) const {
    const CheckedIndex<Index> at = slot(p);
    return {at.is_valid && position(p).is_valid, at.value};
  }

 private:
  Index row_;
  PendingIndex<Index> pos_, slot_;
};

}  // namespace kvrope
