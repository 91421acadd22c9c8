// The width of the vectors that a call allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "launch_plan.h"
#include "wide_params.h"

namespace kvrope {
namespace {

int64_t address_of(const void* data) {
  return reinterpret_cast<int64_t>(data);
}

struct WidthCase {
  std::string name;
  int width;
  std::function<void(RopeCacheParams&)> change;
};

std::ostream& operator<<(std::ostream& out, const WidthCase& c) {
  return out << c.name;
}

using P = RopeCacheParams;
const WidthCase kWidthCases[] = {
    {"all_aligned", 8, [](P&) {}},
    {"fp16", 8, [](P& p) { p.dtype = p.cache_dtype = DType::fp16; }},
    {"fp32", 4, [](P& p) { p.dtype = p.cache_dtype = DType::fp32; }},
    {"fp8_cache", 8, [](P& p) { p.cache_dtype = DType::fp8_e4m3; }},
    {"fp8_cache_at_8_bytes", 8,
     [](P& p) { p.cache_dtype = DType::fp8_e4m3, p.key_cache.data = at_address(8); }},
    {"fp8_cache_at_4_bytes", 4,
     [](P& p) { p.cache_dtype = DType::fp8_e5m2, p.key_cache.data = at_address(4); }},
    {"q_off_by_one_element", 1, [](P& p) { p.q.data = at_address(2); }},
    {"q_out_off_by_two_elements", 2, [](P& p) { p.q_out.data = at_address(4); }},
    {"k_off_by_four_elements", 4, [](P& p) { p.k.data = at_address(8); }},
    {"v_off_by_one_element", 1, [](P& p) { p.v.data = at_address(2); }},
    {"k_out_token_stride", 2, [](P& p) { p.k_out.token_stride += 2; }},
    {"zeros_out_head_stride", 4, [](P& p) { p.zeros_out.head_stride += 4; }},
    {"absent_k_out_does_not_matter", 8,
     [](P& p) {
       p.k_out = {nullptr, 1, 1, 3};
     }},
    {"q_dim_stride", 1, [](P& p) { p.q.dim_stride = 2; }},
    {"equal_rows_by_stride_zero", 8, [](P& p) { p.k.token_stride = p.v.head_stride = 0; }},
    {"key_block_stride", 1, [](P& p) { p.key_cache.layout.block_stride += 1; }},
    {"value_offset_stride", 4, [](P& p) { p.value_cache.layout.offset_outer_stride += 4; }},
    {"key_cache_dim_stride", 1, [](P& p) { p.key_cache.layout.dim_outer_stride = 2; }},
    {"rotary_dim_16", 8, [](P& p) { p.rotary_dim = 16; }},
    {"rotary_dim_8", 4, [](P& p) { p.rotary_dim = 8; }},
    {"rotary_dim_2", 1, [](P& p) { p.rotary_dim = 2; }},
    {"rotary_dim_126", 1, [](P& p) { p.rotary_dim = 126; }},
    {"rotary_offset_4", 4, [](P& p) { p.rotary_dim = 64, p.rotary_dim_offset = 4; }},
    {"rotary_offset_odd", 1, [](P& p) { p.rotary_dim = 64, p.rotary_dim_offset = 33; }},
    {"head_size_130", 1, [](P& p) { p.head_size = 130, p.rotary_dim = 126; }},
    {"odd_value_head_size", 1, [](P& p) { p.v_head_size = 127; }},
    {"table_off_by_one_float", 1, [](P& p) { p.cos_sin.data = at_address(4); }},
    {"table_off_by_one_half", 1, [](P& p) { p.cos_sin.dtype = DType::fp16, p.cos_sin.data = at_address(2); }},
    {"table_row_stride", 2, [](P& p) { p.cos_sin.row_stride = 130; }},
    {"table_column_stride", 1, [](P& p) { p.cos_sin.column_stride = 2; }},
    {"split_key_x8", 8, [](P& p) { use_split_key_cache(p, 8); }},
    {"split_key_x16", 8, [](P& p) { use_split_key_cache(p, 16); }},
    {"split_key_x4", 4, [](P& p) { use_split_key_cache(p, 4); }},
    {"split_key_x1", 1, [](P& p) { use_split_key_cache(p, 1); }},
    {"split_key_group_stride", 2,
     [](P& p) { use_split_key_cache(p, 8), p.key_cache.layout.dim_outer_stride += 2; }},
    {"split_value_is_no_limit", 8,
     [](P& p) { use_split_value_cache(p), p.value_cache.data = at_address(2); }},
    {"q_token_stride_of_33_bits", 1, [](P& p) { p.q.token_stride = int64_t{1} << 32; }},
    {"k_out_head_stride_of_32_bits", 1, [](P& p) { p.k_out.head_stride = int64_t{1} << 31; }},
    {"v_token_stride_of_31_bits", 8, [](P& p) { p.v.token_stride = (int64_t{1} << 31) - 8; }},
    {"key_block_stride_of_33_bits", 1, [](P& p) { p.key_cache.layout.block_stride = int64_t{1} << 32; }},
    {"value_offset_stride_of_33_bits", 1,
     [](P& p) { p.value_cache.layout.offset_outer_stride = int64_t{1} << 32; }},
    {"slots_of_32_bits", 1, [](P& p) { p.num_slots = int64_t{1} << 31; }},
    {"slots_of_31_bits", 8, [](P& p) { p.num_slots = (int64_t{1} << 31) - 1; }},
    {"table_rows_of_33_bits", 1, [](P& p) { p.cos_sin.num_rows = int64_t{1} << 32; }},
    {"table_row_stride_of_33_bits", 1, [](P& p) { p.cos_sin.row_stride = int64_t{1} << 32; }},
    {"window_table_of_33_bits", 1,
     [](P& p) { p.has_swa = true, p.swa_slot_mapping.size = int64_t{1} << 32; }},
    {"slot_stride_of_33_bits", 1, [](P& p) { p.slot_mapping.byte_stride = int64_t{1} << 32; }},
    {"weights_of_16_bits", 8,
     [](P& p) {
       p.q_weight = p.k_weight = {at_address(0), 1, false};
     }},
    {"weights_at_8_bytes", 4,
     [](P& p) {
       p.k_weight = {at_address(8), 1, false};
     }},
    {"weights_of_fp32", 8,
     [](P& p) {
       p.q_weight = {at_address(16), 1, true};
     }},
    {"weights_of_fp32_at_8_bytes", 2,
     [](P& p) {
       p.q_weight = {at_address(8), 1, true};
     }},
    {"strided_weights", 1,
     [](P& p) {
       p.q_weight = {at_address(0), 2, true};
     }},
    {"normed_head_without_vectors_in_pairs", 4,
     [](P& p) {
       p.head_size = 136, p.rotary_dim = 128;
       p.k_weight = {at_address(0), 1, false};
     }},
    {"no_cache_is_no_limit", 8, [](P& p) { p.has_cache = false, p.key_cache = {}; }},
};

class WidestVector : public testing::TestWithParam<WidthCase> {};

TEST_P(WidestVector, Is) {
  RopeCacheParams params = wide_params();
  GetParam().change(params);
  EXPECT_EQ(widest_vector(params), GetParam().width);
}

INSTANTIATE_TEST_SUITE_P(Cases, WidestVector, testing::ValuesIn(kWidthCases),
                         [](const auto& info) { return info.param.name; });

// Whether the `width` elements from each multiple of width are neighbours and aligned as one vector.
testing::AssertionResult are_vectors(const std::function<int64_t(int)>& element_address, int size, int width,
                                     int item_bytes) {
  for (int first = 0; first < size; first += width) {
    if (element_address(first) % (width * item_bytes) != 0)
      return testing::AssertionFailure() << "unaligned " << first;
    for (int j = 1; j < width; ++j) {
      if (element_address(first + j) != element_address(first) + j * item_bytes) {
        return testing::AssertionFailure() << "not neighbours from " << first;
      }
    }
  }
  return testing::AssertionSuccess();
}

void expect_row_vectors(const HeadRows& rows, int size, int width, DType dtype) {
  const int bytes = size_of(dtype);
  for (int64_t token = 0; token < 3; ++token) {
    for (int64_t head = 0; head < 3; ++head) {
      const int64_t row = token * rows.token_stride + head * rows.head_stride;
      const auto address = [&](int d) { return address_of(rows.data) + (row + d * rows.dim_stride) * bytes; };
      ASSERT_TRUE(are_vectors(address, size, width, bytes));
    }
  }
}

void expect_cache_vectors(const PagedCache& cache, int size, int width, DType dtype) {
  const int bytes = size_of(dtype);
  for (int64_t block = 0; block < 2; ++block) {
    for (int64_t offset = 0; offset < 3; ++offset) {
      for (int head = 0; head < 2; ++head) {
        const int64_t row = cache.layout.row_offset(block, offset, head);
        const auto address = [&](int d) {
          return address_of(cache.data) + (row + cache.layout.dim_offset(d)) * bytes;
        };
        ASSERT_TRUE(are_vectors(address, size, width, bytes));
      }
    }
  }
}

// A thread reads its columns in vectors of at most 16 bytes; GPT-J reads half as many of a half-width table.
void expect_table_vectors(const RopeCacheParams& p, int width) {
  const int columns = p.cos_sin.is_full_width ? 2 * p.rotary_dim : p.rotary_dim;
  const int bytes = size_of(p.cos_sin.dtype);
  const int asked = !p.is_neox && !p.cos_sin.is_full_width ? std::max(width / 2, 1) : width;
  const int read = std::min(asked, 16 / bytes);
  for (int64_t position = 0; position < 3; ++position) {
    const auto address = [&](int column) {
      return address_of(p.cos_sin.data) +
             (position * p.cos_sin.row_stride + column * p.cos_sin.column_stride) * bytes;
    };
    ASSERT_TRUE(are_vectors(address, columns, read, bytes));
  }
}

// Random strides, addresses and sizes, mostly of the aligned kind: what is chosen is always possible.
class RandomParams {
 public:
  explicit RandomParams(uint32_t seed) : random_(seed) {}

  RopeCacheParams draw() {
    alignment_ = one_of({1, 2, 4, 8, 8, 8, 8, 16});
    RopeCacheParams p = wide_params();
    p.dtype = static_cast<DType>(one_of({0, 1, 2, 2}));
    p.cache_dtype = one_of({0, 1}) ? p.dtype : static_cast<DType>(one_of({3, 4}));
    p.head_size = std::max(2, multiple(32)) / 2 * 2;
    p.v_head_size = multiple(32);
    p.rotary_dim = std::clamp(2 * multiple(16), 2, p.head_size);
    p.rotary_dim_offset = one_of({0, 0, p.head_size - p.rotary_dim, (p.head_size - p.rotary_dim) / 2});
    p.is_neox = one_of({0, 1});
    p.cos_sin.is_full_width = one_of({0, 1});
    for (HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) {
      *rows = {address(size_of(p.dtype)), multiple(999), multiple(999),
               one_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2})};
    }
    p.cos_sin.dtype = static_cast<DType>(one_of({0, 1, 2}));
    p.cos_sin.data = address(size_of(p.cos_sin.dtype));
    p.cos_sin.row_stride = multiple(999);
    for (PagedCache* cache : {&p.key_cache, &p.value_cache}) *cache = draw_cache(size_of(p.cache_dtype));
    return p;
  }

 private:
  PagedCache draw_cache(int bytes) {
    const int split = one_of({0, 0, 2, 3, 4});
    const bool splits_dim = one_of({0, 1});
    return {address(bytes),
            {.block_stride = multiple(9999),
             .head_stride = multiple(999),
             .offset_outer_stride = multiple(999),
             .offset_inner_stride = multiple(9),
             .dim_outer_stride = one_of({1, 1, multiple(16)}),
             .dim_inner_stride = one_of({1, 1, 1, 3}),
             .offset_split_log2 = splits_dim ? 0 : split,
             .dim_split_log2 = splits_dim ? split : 0}};
  }

  int one_of(const std::vector<int>& values) { return values[random_() % values.size()]; }
  int multiple(int up_to) { return alignment_ * (1 + random_() % up_to); }
  void* address(int bytes) { return at_address(int64_t{bytes} * multiple(99)); }

  std::mt19937 random_;
  int alignment_ = 1;
};

TEST(WidestVector, NeverBreaksAVector) {
  RandomParams random(11);
  std::map<int, int> num_of_width;
  for (int round = 0; round < 20000; ++round) {
    const RopeCacheParams p = random.draw();
    const int width = widest_vector(p);
    ++num_of_width[width];
    ASSERT_TRUE(width == 1 || width == 2 || width == 4 || width == 8);
    ASSERT_LE(width * size_of(p.dtype), 16);
    ASSERT_EQ(p.rotary_dim % (2 * width), 0);
    ASSERT_EQ(p.rotary_dim_offset % width, 0);
    ASSERT_EQ(p.head_size % width, 0);
    ASSERT_EQ(p.v_head_size % width, 0);
    for (const HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out}) {
      if (width > 1) expect_row_vectors(*rows, p.head_size, width, p.dtype);
    }
    if (width > 1) {
      expect_row_vectors(p.v, p.v_head_size, width, p.dtype);
      expect_table_vectors(p, width);
    }
    ASSERT_TRUE(p.key_cache.layout.has_contiguous_dims(width));
    for (const auto& [cache, size] :
         {std::pair(p.key_cache, p.head_size), std::pair(p.value_cache, p.v_head_size)}) {
      if (cache.layout.has_contiguous_dims(width)) expect_cache_vectors(cache, size, width, p.cache_dtype);
    }
    if (HasFatalFailure()) FAIL() << "round " << round << " width " << width;
  }
  for (const int width : {1, 2, 4, 8}) EXPECT_GT(num_of_width[width], 100) << "width " << width;
}

}  // namespace
}  // namespace kvrope
