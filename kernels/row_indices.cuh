// The scheduler's numbers of one row, loaded before anything waits for one of them: position and slot are on
// their way at the same time as the row's elements. Behind a window the slot waits for its entry's index.
#pragma once

#include "extensions.cuh"
#include "instruction_order.cuh"
#include "slots.cuh"

namespace kvrope {

// An index as it stands in memory, int32 or int64. Whoever asks it waits for it. Where indices have 32 bits
// no limit is above 2^31 - 1, so that a negative int32 is below none as it is.
template <typename Index>
class PendingIndex {
 public:
  PendingIndex() = default;

  // Below no limit where it is not inside: all bits of it are ones then, or those of its lower half.
  __device__ __forceinline__ PendingIndex(const BasicIndexArray<Index>& array, Index i, bool is_inside) {
    const char* from = place_of_index(array, i);
    low_ = load_word_if(is_inside, from, 0xffffffffu);
    high_ = load_word_if(is_inside && array.is_int64, from + 4, kIsWide ? 0xffffffffu : 0u);
    if (kIsWide && !array.is_int64) high_ = sign_of(low_);
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

  // Of any.
  __device__ __forceinline__ uint32_t low_half() const { return low_; }

  // Of any, as the array it came from holds it.
  __device__ __forceinline__ int64_t value(bool is_int64) const {
    return static_cast<int64_t>(uint64_t{is_int64 ? high_ : sign_of(low_)} << 32 | low_);
  }

 private:
  static constexpr bool kIsWide = sizeof(Index) > 4;

  static __device__ __forceinline__ uint32_t sign_of(uint32_t low) {
    return static_cast<uint32_t>(static_cast<int32_t>(low) >> 31);
  }

  uint32_t low_ = 0xffffffffu, high_ = 0xffffffffu;
};

template <typename Index>
struct CheckedIndex {
  bool is_valid;
  Index value;
};

// A position on each axis, or one for all where kMaxAxes is 1.
template <typename Index, int kMaxAxes>
struct CheckedPosition {
  bool is_valid;  // on all axes
  Index value[kMaxAxes];

  // On the axis in the lowest bits (FrequencyAxes), without an index into registers.
  __device__ __forceinline__ Index on(uint32_t axis) const {
    if constexpr (kMaxAxes == 1) return value[0];
    const uint32_t lowest = axis % (1u << FrequencyAxes::kBits);
    return lowest == 0 ? value[0] : lowest == 1 ? value[1] : value[kMaxAxes - 1];
  }
};

template <typename Params, Presence kAxes>
class PendingPosition {
 public:
  using Index = IndexOf<Params>;
  static constexpr int kMaxAxes = kNumAxesOf<kAxes>;

  __device__ __forceinline__ PendingPosition(const Params& p, Index row, bool is_inside) {
    pos_[0] = {p.pos, row, is_inside};
#pragma unroll
    for (int axis = 1; axis < kMaxAxes; ++axis) {
      pos_[axis] = pos_[0];
      if (has_axes<kAxes>(p)) pos_[axis] = {pos_of_axis<Index>(p, axis), row, is_inside};
    }
    if (has_offs(p)) offs_ = {p.offs, row, is_inside};
  }

  __device__ __forceinline__ CheckedPosition<Index, kMaxAxes> checked(const Params& p) const {
    CheckedPosition<Index, kMaxAxes> position;
    position.is_valid = true;
#pragma unroll
    for (int axis = 0; axis < kMaxAxes; ++axis) {
      const CheckedIndex<Index> on_axis = checked(p, pos_[axis]);
      position.is_valid &= on_axis.is_valid;
      position.value[axis] = on_axis.value;
    }
    return position;
  }

 private:
  __device__ __forceinline__ CheckedIndex<Index> checked(const Params& p,
                                                         const PendingIndex<Index>& pos) const {
    if (!has_offs(p)) return {pos.is_below(p.cos_sin.num_rows), pos.value()};
    const int64_t position = saturated_sum(pos.value(p.pos.is_int64), offs_.value(p.offs.is_int64));
    return {is_index(position, p.cos_sin.num_rows), static_cast<Index>(position)};
  }

  PendingIndex<Index> pos_[kMaxAxes], offs_;
};

// The slot in the cache of a row that asks for one: behind the window table where there is one.
template <typename Params, typename Index>
__device__ __forceinline__ PendingIndex<Index> behind_window(const Params& p,
                                                             const PendingIndex<Index>& asked_for) {
  if (!has_window(p)) return asked_for;
  return {p.swa_slot_mapping, asked_for.value(), asked_for.is_below(p.swa_slot_mapping.size)};
}

// The numbers of a row of k and v. KV-only rows have no position and need none.
template <typename Params, Presence kAxes = kMaybeExtended<Params>>
class PendingKvRow {
 public:
  using Index = IndexOf<Params>;

  __device__ __forceinline__ PendingKvRow(const Params& p, Index row)
      : is_token_(is_token(p, row)),
        position_(p, row, is_token_),
        asked_for_(p.slot_mapping, row, has_slot(p, row)),
        slot_(behind_window(p, asked_for_)) {}

  __device__ __forceinline__ CheckedPosition<Index, kNumAxesOf<kAxes>> position(const Params& p) const {
    if (!is_token_) return {true, {}};
    return position_.checked(p);
  }

  __device__ __forceinline__ CheckedIndex<Index> slot(const Params& p) const {
    return {slot_.is_below(p.num_slots), slot_.value()};
  }

  __device__ __forceinline__ const PendingIndex<Index>& pending_slot() const { return slot_; }

  // Of a row whose slot is not valid: whether that is surely no fault. Rows past an int64 slot_mapping are
  // told from faults where those are recorded.
  __device__ __forceinline__ bool is_padding(const Params& p) const {
    if (asked_for_.value(p.slot_mapping.is_int64) < 0) return true;
    return has_window(p) && asked_for_.is_below(p.swa_slot_mapping.size) &&
           slot_.value(p.swa_slot_mapping.is_int64) < 0;
  }

 private:
  bool is_token_;
  PendingPosition<Params, kAxes> position_;
  PendingIndex<Index> asked_for_, slot_;
};

}  // namespace kvrope
