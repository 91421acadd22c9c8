// Which elements of a head one thread holds: two vectors of kVec elements, `lo` and `hi`.
//
// A head of D elements is cut into slices, first the rotated ones, then those that pass through:
//
//   rotated, slice i < R/2/kVec      lo = offset + i kVec             hi = lo + R/2
//       NeoX:  lo[j] and hi[j] are a pair
//       GPT-J: lo[2j], lo[2j+1] are a pair, and so are hi[2j], hi[2j+1]; with kVec = 1 lo = 2i, hi = 2i + 1
//   passing through                   the D - R other elements, vector c and vector c + half of them
//
// Both styles read and write the same addresses in the same order: whole sectors, whatever the pairing.
#pragma once

#include "dtype.h"

namespace kvrope {

struct HeadShape {  // V rows, and K rows that are already final, have rotary_dim 0
  int head_size, rotary_dim, rotary_dim_offset;
};

struct SliceDims {
  int lo, hi;  // head dimensions at which the two vectors start
  bool is_rotated;
  bool has_lo;  // false past the last slice
  bool has_hi;  // false too for the last of an odd number of vectors that pass through
};

// The slices of a head that is rotated whole, or passes through whole, and has vectors in pairs.
template <int kVec>
KVROPE_HOST_DEVICE SliceDims slice_of_whole_head(int head_size, bool is_rotated, int i) {
  const int half = static_cast<int>(static_cast<unsigned>(head_size) / 2), lo = i * kVec;
  return {lo, lo + half, is_rotated, lo < half, true};
}

// The same of a head that is rotated in part, from its first element on, whose rotated and whose other
// elements have vectors in pairs.
template <int kVec>
KVROPE_HOST_DEVICE SliceDims slice_of_partial_head(int head_size, int rotary_dim, int i) {
  const int rotated = static_cast<int>(static_cast<unsigned>(rotary_dim) / (2 * kVec));
  const bool is_rotated = i < rotated;
  const int lo = (is_rotated ? i : rotated + i) * kVec;
  const int size = is_rotated ? rotary_dim : head_size - rotary_dim;
  const int hi = lo + static_cast<int>(static_cast<unsigned>(size) / 2);
  return {lo, hi, is_rotated, hi < head_size, true};
}

template <int kVec>
KVROPE_HOST_DEVICE SliceDims slice_dims(const HeadShape& head, bool is_neox, int i) {
  const int rotated = static_cast<int>(static_cast<unsigned>(head.rotary_dim) / (2 * kVec));
  if (i < rotated) {
    if (kVec == 1 && !is_neox) {
      return {head.rotary_dim_offset + 2 * i, head.rotary_dim_offset + 2 * i + 1, true, true, true};
    }
    const int lo = head.rotary_dim_offset + i * kVec;
    return {lo, lo + static_cast<int>(static_cast<unsigned>(head.rotary_dim) / 2), true, true, true};
  }
  const int passing = static_cast<int>(static_cast<unsigned>(head.head_size - head.rotary_dim) / kVec);
  const int half = (passing + 1) / 2;
  const int c = i - rotated;
  const auto skip_rotated = [&](int dim) {
    return dim < head.rotary_dim_offset ? dim : dim + head.rotary_dim;
  };
  return {skip_rotated(c * kVec), skip_rotated((c + half) * kVec), false, c < half,
          c < half && c + half < passing};
}

}  // namespace kvrope
