// The address of every element of every cache layout, against plain indexing of the tensor that the contract
// describes.
#include "cache_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <ostream>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace kvrope {
namespace {

struct Sizes {
  int num_blocks, block_size, num_heads, head_size;
};

// A cache tensor: its shape, its strides, and the index of (block, offset, head, dim) in it.
struct CacheTensor {
  std::vector<int64_t> shape, strides;

  int64_t address(const std::vector<int64_t>& index) const {
    return std::inner_product(index.begin(), index.end(), strides.begin(), int64_t{0});
  }
  int64_t numel() const {
    return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
  }
};

enum class Kind { flash, split_key, split_value, shuffled_value };

std::vector<int64_t> shape_of(Kind kind, const Sizes& s, int x) {
  switch (kind) {
    case Kind::flash:
      return {s.num_blocks, s.block_size, s.num_heads, s.head_size};
    case Kind::split_key:
      return {s.num_blocks, s.num_heads, s.head_size / x, s.block_size, x};
    case Kind::split_value:
      return {s.num_blocks, s.num_heads, s.head_size, s.block_size};
    default:
      return {s.num_blocks, s.num_heads, s.block_size / x, s.head_size, x};
  }
}

std::vector<int64_t> index_of(Kind kind, int x, int64_t block, int64_t offset, int64_t head, int64_t dim) {
  switch (kind) {
    case Kind::flash:
      return {block, offset, head, dim};
    case Kind::split_key:
      return {block, head, dim / x, offset, dim % x};
    case Kind::split_value:
      return {block, head, dim, offset};
    default:
      return {block, head, offset / x, dim, offset % x};
  }
}

int log2_of(int x) {
  int log2 = 0;
  while ((1 << log2) < x) ++log2;
  return log2;
}

CacheLayout layout_of(Kind kind, const CacheTensor& tensor, int x) {
  const std::vector<int64_t>& s = tensor.strides;
  CacheLayout layout = {};
  layout.block_stride = s[0];
  switch (kind) {
    case Kind::flash:
      layout.offset_outer_stride = s[1];
      layout.head_stride = s[2];
      layout.dim_outer_stride = s[3];
      break;
    case Kind::split_key:
      layout.head_stride = s[1];
      layout.dim_outer_stride = s[2];
      layout.offset_outer_stride = s[3];
      layout.dim_inner_stride = s[4];
      layout.dim_split_log2 = log2_of(x);
      break;
    case Kind::split_value:
      layout.head_stride = s[1];
      layout.dim_outer_stride = s[2];
      layout.offset_outer_stride = s[3];
      break;
    case Kind::shuffled_value:
      layout.head_stride = s[1];
      layout.offset_outer_stride = s[2];
      layout.dim_outer_stride = s[3];
      layout.offset_inner_stride = s[4];
      layout.offset_split_log2 = log2_of(x);
      break;
  }
  return layout;
}

BasicCacheLayout<uint32_t> compact_form(const CacheLayout& layout) {
  const auto narrow = [](int64_t stride) { return static_cast<uint32_t>(stride); };
  return {.block_stride = narrow(layout.block_stride),
          .head_stride = narrow(layout.head_stride),
          .offset_outer_stride = narrow(layout.offset_outer_stride),
          .offset_inner_stride = narrow(layout.offset_inner_stride),
          .dim_outer_stride = narrow(layout.dim_outer_stride),
          .dim_inner_stride = narrow(layout.dim_inner_stride),
          .offset_split_log2 = layout.offset_split_log2,
          .dim_split_log2 = layout.dim_split_log2};
}

// Strides of a tensor whose dimensions lie in memory in `order`, outermost first, each padded by `padding`
// elements.
std::vector<int64_t> strides_in_order(const std::vector<int64_t>& shape, const std::vector<int>& order,
                                      int padding) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = padding > 0 ? 2 : 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride = stride * shape[order[i]] + padding;
  }
  return strides;
}

void expect_plain_indexing(Kind kind, const Sizes& sizes, int x, const CacheTensor& tensor, bool is_dense) {
  const CacheLayout layout = layout_of(kind, tensor, x);
  const BasicCacheLayout<uint32_t> compact = compact_form(layout);
  std::set<int64_t> seen;
  for (int64_t slot = 0; slot < int64_t{sizes.num_blocks} * sizes.block_size; ++slot) {
    const int64_t block = slot / sizes.block_size, offset = slot % sizes.block_size;
    for (int head = 0; head < sizes.num_heads; ++head) {
      for (int dim = 0; dim < sizes.head_size; ++dim) {
        const int64_t address = layout.row_offset(block, offset, head) + layout.dim_offset(dim);
        ASSERT_EQ(address, compact.row_offset(block, offset, head) + compact.dim_offset(dim));
        ASSERT_EQ(address, tensor.address(index_of(kind, x, block, offset, head, dim)))
            << "slot " << slot << " head " << head << " dim " << dim << " x " << x;
        ASSERT_TRUE(seen.insert(address).second) << "two elements share address " << address;
      }
    }
  }
  ASSERT_EQ(static_cast<int64_t>(seen.size()), tensor.numel());
  if (is_dense) {
    ASSERT_EQ(*seen.begin(), 0);
    ASSERT_EQ(*seen.rbegin(), tensor.numel() - 1);
  }
}

struct Case {
  std::string name;
  Kind kind;
  int x;
  int block_size;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, Kind kind, int x, int block_size) {
    cases.push_back({std::string(name) + "_x" + std::to_string(x) + "_bs" + std::to_string(block_size), kind,
                     x, block_size});
  };
  for (const int block_size : {1, 16, 24, 784}) {
    add("flash", Kind::flash, 1, block_size);
    add("split_value", Kind::split_value, 1, block_size);
    for (const int x : {1, 2, 4, 8, 16}) {
      add("split_key", Kind::split_key, x, block_size);
      if (block_size % x == 0) add("shuffled_value", Kind::shuffled_value, x, block_size);
    }
  }
  return cases;
}

class CacheLayoutTest : public testing::TestWithParam<Case> {
 protected:
  Sizes sizes() const {
    return GetParam().block_size > 100 ? Sizes{2, GetParam().block_size, 2, 16}
                                       : Sizes{3, GetParam().block_size, 2, 48};
  }
  std::vector<int64_t> shape() const { return shape_of(GetParam().kind, sizes(), GetParam().x); }
};

TEST_P(CacheLayoutTest, DenseCacheIsABijection) {
  std::vector<int> order(shape().size());
  std::iota(order.begin(), order.end(), 0);
  const CacheTensor tensor = {shape(), strides_in_order(shape(), order, 0)};
  expect_plain_indexing(GetParam().kind, sizes(), GetParam().x, tensor, true);
}

TEST_P(CacheLayoutTest, PermutedAndPaddedCachesAreStridedFormulas) {
  std::mt19937 random(7);
  std::vector<int> order(shape().size());
  std::iota(order.begin(), order.end(), 0);
  for (int round = 0; round < 6; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    const int padding = round % 3;
    const CacheTensor tensor = {shape(), strides_in_order(shape(), order, padding)};
    expect_plain_indexing(GetParam().kind, sizes(), GetParam().x, tensor, padding == 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CacheLayoutTest, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

// Whether vectors of n elements are contiguous, by looking at every one of them.
bool all_vectors_are_contiguous(const CacheLayout& layout, int head_size, int n) {
  for (int first = 0; first < head_size; first += n) {
    for (int j = 1; j < n; ++j) {
      if (layout.dim_offset(first + j) != layout.dim_offset(first) + j) return false;
    }
  }
  return true;
}

TEST(CacheLayout, ContiguousDimsAreExactlyTheContiguousVectors) {
  constexpr int kHeadSize = 64;
  for (int split_log2 = 0; split_log2 <= 4; ++split_log2) {
    for (const int64_t outer_stride : {1, 2, 16, 48, 1024}) {
      for (const int64_t inner_stride : {1, 2, 24}) {
        const CacheLayout layout = {.block_stride = 1 << 20,
                                    .head_stride = 1 << 16,
                                    .offset_outer_stride = 1 << 14,
                                    .offset_inner_stride = 0,
                                    .dim_outer_stride = outer_stride,
                                    .dim_inner_stride = inner_stride,
                                    .offset_split_log2 = 0,
                                    .dim_split_log2 = split_log2};
        for (const int n : {1, 2, 4, 8, 16}) {
          const bool expected = all_vectors_are_contiguous(layout, kHeadSize, n);
          const bool spans_groups =
              split_log2 > 0 && n > (1 << split_log2);  // may be refused although contiguous
          if (!spans_groups) {
            ASSERT_EQ(layout.has_contiguous_dims(n), expected)
                << "split " << (1 << split_log2) << " strides " << outer_stride << ", " << inner_stride
                << " n " << n;
          } else {
            ASSERT_FALSE(layout.has_contiguous_dims(n)) << "split " << (1 << split_log2) << " n " << n;
          }
        }
      }
    }
  }
}

TEST(CacheLayout, ContiguousDimsOfTheUsualCaches) {
  const Sizes sizes = {4, 16, 2, 64};
  const auto layout = [&](Kind kind, int x) {
    const std::vector<int64_t> shape = shape_of(kind, sizes, x);
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return layout_of(kind, {shape, strides_in_order(shape, order, 0)}, x);
  };
  EXPECT_TRUE(layout(Kind::flash, 1).has_contiguous_dims(8));
  EXPECT_TRUE(layout(Kind::split_key, 8).has_contiguous_dims(8));
  EXPECT_FALSE(layout(Kind::split_key, 4).has_contiguous_dims(8));
  EXPECT_FALSE(layout(Kind::split_value, 1).has_contiguous_dims(2));
  EXPECT_FALSE(layout(Kind::shuffled_value, 8).has_contiguous_dims(2));
  EXPECT_TRUE(layout(Kind::split_value, 1).has_contiguous_dims(1));
}

TEST(CacheLayout, AddressesBeyondThirtyTwoBits) {
  const CacheLayout layout = {.block_stride = int64_t{1} << 33,
                              .head_stride = (int64_t{1} << 32) + 1,
                              .offset_outer_stride = int64_t{1} << 31,
                              .offset_inner_stride = (int64_t{1} << 31) + 3,
                              .dim_outer_stride = int64_t{1} << 34,
                              .dim_inner_stride = (int64_t{1} << 30) + 7,
                              .offset_split_log2 = 3,
                              .dim_split_log2 = 4};
  const int64_t block = 1 << 20, offset = 8 * 97 + 5;
  EXPECT_EQ(layout.row_offset(block, offset, 7), (block << 33) + 7 * ((int64_t{1} << 32) + 1) +
                                                     (int64_t{97} << 31) + 5 * ((int64_t{1} << 31) + 3));
  EXPECT_EQ(layout.dim_offset(16 * 31 + 15), (int64_t{31} << 34) + 15 * ((int64_t{1} << 30) + 7));
}

// The most that a compact call may hold: factors of 31 bits, a product of 62.
TEST(CacheLayout, CompactFactorsOfThirtyOneBits) {
  const int64_t most = INT32_MAX;
  const CacheLayout layout = {.block_stride = most,
                              .head_stride = most - 2,
                              .offset_outer_stride = most - 4,
                              .offset_inner_stride = most - 6,
                              .dim_outer_stride = most - 8,
                              .dim_inner_stride = most - 10,
                              .offset_split_log2 = 3,
                              .dim_split_log2 = 4};
  const BasicCacheLayout<uint32_t> compact = compact_form(layout);
  EXPECT_EQ(compact.row_offset(most, 8 * 77 + 5, 65535), layout.row_offset(most, 8 * 77 + 5, 65535));
  EXPECT_EQ(compact.row_offset(3, most, 1), layout.row_offset(3, most, 1));
  EXPECT_EQ(compact.dim_offset(511), layout.dim_offset(511));
}

// One block may hold more than 32 bits count.
TEST(CacheLayout, OffsetsBeyondThirtyTwoBits) {
  const CacheLayout layout = {.block_stride = 0,
                              .head_stride = 64,
                              .offset_outer_stride = 128,
                              .offset_inner_stride = 1,
                              .dim_outer_stride = 1,
                              .dim_inner_stride = 0,
                              .offset_split_log2 = 4,
                              .dim_split_log2 = 0};
  const int64_t offset = (int64_t{1} << 36) + 16 * 3 + 9;
  EXPECT_EQ(layout.row_offset(0, offset, 1), 64 + ((int64_t{1} << 32) + 3) * 128 + 9);
}

}  // namespace
}  // namespace kvrope
