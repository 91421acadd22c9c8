// The slices that the threads of one row take: every element of a row belongs to one slice, and both elements
// of a pair to the same.
#include "slice_dims.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rotate.cuh"

namespace kvrope {
namespace {

template <int kVec>
void expect_slices_partition_the_head(const HeadShape& head, bool is_neox) {
  const auto shape_text = [&] {
    return "D " + std::to_string(head.head_size) + " R " + std::to_string(head.rotary_dim) + " offset " +
           std::to_string(head.rotary_dim_offset) + " width " + std::to_string(kVec) +
           (is_neox ? " NeoX" : " GPT-J");
  };
  std::vector<int> slice_of(head.head_size, -1), is_rotated(head.head_size, -1);
  for (int i = 0;; ++i) {
    const SliceDims dims = slice_dims<kVec>(head, is_neox, i);
    if (!dims.has_lo) {
      ASSERT_FALSE(dims.has_hi) << shape_text();
      break;
    }
    ASSERT_LT(i, head.head_size) << shape_text() << ": no end";
    ASSERT_TRUE(dims.has_hi || !dims.is_rotated) << shape_text();
    for (const int first : {dims.lo, dims.hi}) {
      if (first == dims.hi && !dims.has_hi) continue;
      ASSERT_EQ(first % kVec, 0) << shape_text() << " slice " << i;
      for (int dim = first; dim < first + kVec; ++dim) {
        ASSERT_TRUE(dim >= 0 && dim < head.head_size) << shape_text() << " slice " << i << " dim " << dim;
        ASSERT_EQ(slice_of[dim], -1) << shape_text() << " dim " << dim << " taken twice";
        slice_of[dim] = i;
        is_rotated[dim] = dims.is_rotated;
      }
    }
  }
  const RotaryStyle style = {is_neox, false};
  for (int dim = 0; dim < head.head_size; ++dim) {
    const int j = dim - head.rotary_dim_offset;
    ASSERT_NE(slice_of[dim], -1) << shape_text() << " dim " << dim << " not taken";
    ASSERT_EQ(is_rotated[dim], j >= 0 && j < head.rotary_dim) << shape_text() << " dim " << dim;
  }
  for (int pair = 0; pair < head.rotary_dim / 2; ++pair) {
    const int a = head.rotary_dim_offset + style.first_of_pair(pair);
    const int b = head.rotary_dim_offset + style.second_of_pair(pair, head.rotary_dim);
    ASSERT_EQ(slice_of[a], slice_of[b]) << shape_text() << " pair " << pair;
  }
}

template <int kVec>
void expect_slices_of_all_shapes(int head_size) {
  if (head_size % kVec != 0) return;
  const int step = 2 * kVec * (head_size <= 128 ? 1 : 7);
  for (int rotary_dim = 2 * kVec; rotary_dim <= head_size; rotary_dim += step) {
    const int last_offset = head_size - rotary_dim;
    for (const int offset : {0, kVec, last_offset / 2 / kVec * kVec, last_offset - kVec, last_offset}) {
      if (offset < 0 || offset > last_offset) continue;
      expect_slices_partition_the_head<kVec>({head_size, rotary_dim, offset}, true);
      expect_slices_partition_the_head<kVec>({head_size, rotary_dim, offset}, false);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
  expect_slices_partition_the_head<kVec>({head_size, 0, 0}, true);
}

TEST(SliceDims, PartitionEveryEvenHeadSize) {
  for (int head_size = 2; head_size <= 512; head_size += 2) {
    expect_slices_of_all_shapes<1>(head_size);
    expect_slices_of_all_shapes<2>(head_size);
    expect_slices_of_all_shapes<4>(head_size);
    expect_slices_of_all_shapes<8>(head_size);
    if (HasFatalFailure()) return;
  }
}

TEST(SliceDims, PartitionEveryValueHeadSize) {
  for (int head_size = 1; head_size <= 512; ++head_size) {
    const HeadShape head = {head_size, 0, 0};
    expect_slices_partition_the_head<1>(head, true);
    if (head_size % 2 == 0) expect_slices_partition_the_head<2>(head, true);
    if (head_size % 4 == 0) expect_slices_partition_the_head<4>(head, true);
    if (head_size % 8 == 0) expect_slices_partition_the_head<8>(head, true);
  }
}

// The short forms of plain calls say the same.
template <int kVec, typename SliceOf>
void expect_same_slices(const HeadShape& head, const SliceOf& slice_of) {
  for (int i = 0; i < head.head_size; ++i) {
    const SliceDims want = slice_dims<kVec>(head, true, i), got = slice_of(i);
    SCOPED_TRACE(testing::Message() << head.head_size << " rotated " << head.rotary_dim << " slice " << i);
    ASSERT_EQ(got.has_lo, want.has_lo);
    if (!want.has_lo) break;
    ASSERT_EQ(got.lo, want.lo);
    ASSERT_EQ(got.hi, want.hi);
    ASSERT_EQ(got.is_rotated, want.is_rotated);
    ASSERT_TRUE(want.has_hi && got.has_hi);
  }
}

template <int kVec>
void expect_same_slices_of_whole_head(int head_size) {
  for (const bool is_rotated : {false, true}) {
    expect_same_slices<kVec>({head_size, is_rotated ? head_size : 0, 0},
                             [&](int i) { return slice_of_whole_head<kVec>(head_size, is_rotated, i); });
  }
}

template <int kVec>
void expect_same_slices_of_partial_head(int head_size) {
  for (int rotary_dim = 2 * kVec; rotary_dim < head_size; rotary_dim += 2 * kVec) {
    expect_same_slices<kVec>({head_size, rotary_dim, 0},
                             [&](int i) { return slice_of_partial_head<kVec>(head_size, rotary_dim, i); });
  }
}

TEST(SliceDims, WholeHeads) {
  for (int head_size = 16; head_size <= 512; head_size += 16) {
    expect_same_slices_of_whole_head<2>(head_size);
    expect_same_slices_of_whole_head<4>(head_size);
    expect_same_slices_of_whole_head<8>(head_size);
  }
}

TEST(SliceDims, PartialHeads) {
  for (int head_size = 16; head_size <= 512; head_size += 16) {
    expect_same_slices_of_partial_head<4>(head_size);
    expect_same_slices_of_partial_head<8>(head_size);
  }
}

}  // namespace
}  // namespace kvrope
