// The compact form holds what the full one does, and is refused where a number does not fit.
#include "compact_params.h"

#include <gtest/gtest.h>

#include <climits>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvrope {
namespace {

// Every number that decides compactness, and every other number that has a counterpart, by one visit of both
// forms.
template <typename Params, typename Visit>
void visit_numbers(Params& p, const Visit& visit) {
  visit("num_tokens", p.num_tokens);
  visit("num_kv_rows", p.num_kv_rows);
  visit("num_slots", p.num_slots);
  visit("block_size", p.block_size.divisor);
  const auto rows = [&](const char* name, auto& x) {
    visit(name, x.token_stride);
    visit(name, x.head_stride);
    visit(name, x.dim_stride);
  };
  rows("q", p.q);
  rows("q_out", p.q_out);
  rows("zeros_out", p.zeros_out);
  rows("k", p.k);
  rows("k_out", p.k_out);
  rows("v", p.v);
  const auto indices = [&](const char* name, auto& x) {
    visit(name, x.size);
    visit(name, x.byte_stride);
  };
  indices("pos", p.pos);
  indices("offs", p.offs);
  indices("slot_mapping", p.slot_mapping);
  indices("swa_slot_mapping", p.swa_slot_mapping);
  visit("cos_sin", p.cos_sin.num_rows);
  visit("cos_sin", p.cos_sin.row_stride);
  visit("cos_sin", p.cos_sin.column_stride);
  const auto layout = [&](const char* name, auto& x) {
    visit(name, x.block_stride);
    visit(name, x.head_stride);
    visit(name, x.offset_outer_stride);
    visit(name, x.offset_inner_stride);
    visit(name, x.dim_outer_stride);
    visit(name, x.dim_inner_stride);
  };
  layout("key_cache", p.key_cache.layout);
  layout("value_cache", p.value_cache.layout);
  visit("q_weight", p.q_weight.stride);
  visit("k_weight", p.k_weight.stride);
  visit("pos_axis_stride", p.pos_axis_stride);
}

template <typename Params, typename Visit>
void visit_pointers(Params& p, const Visit& visit) {
  for (auto* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) visit(rows->data);
  for (auto* array : {&p.pos, &p.offs, &p.slot_mapping, &p.swa_slot_mapping}) visit(array->data);
  visit(p.cos_sin.data);
  visit(p.key_cache.data);
  visit(p.value_cache.data);
  visit(p.k_scale.data);
  visit(p.v_scale.data);
  visit(p.fault_record);
  visit(p.q_weight.data);
  visit(p.k_weight.data);
  visit(p.q_scale.data);
}

// All numbers and addresses differ.
RopeCacheParams distinct_params() {
  RopeCacheParams p = {};
  int64_t next = 1000;
  visit_numbers(p, [&](const char*, int64_t& value) { value = next++; });
  visit_pointers(p,
                 [&](auto& pointer) { pointer = reinterpret_cast<std::decay_t<decltype(pointer)>>(next++); });
  p.num_q_heads = 1, p.num_kv_heads = 2, p.head_size = 3, p.v_head_size = 4, p.rotary_dim = 5,
  p.rotary_dim_offset = 6;
  p.key_cache.layout.offset_split_log2 = 7, p.key_cache.layout.dim_split_log2 = 8;
  p.value_cache.layout.offset_split_log2 = 9, p.value_cache.layout.dim_split_log2 = 10;
  p.k_scale.head_stride = 11, p.v_scale.head_stride = 12;
  p.dtype = DType::bf16, p.cache_dtype = DType::fp8_e5m2, p.cos_sin.dtype = DType::fp16;
  p.has_cache = true;
  p.norm_eps = 0.25f, p.inverse_head_size = 0.125f;
  p.axes.words[0] = 13, p.axes.words[15] = 14;
  p.q_out_dtype = DType::fp8_e4m3, p.q_scale.head_stride = 15;
  return p;
}

TEST(CompactParams, HoldTheSameNumbersAndAddresses) {
  RopeCacheParams p = distinct_params();
  ASSERT_TRUE(is_compact(p));
  CompactParams c = make_compact(p);
  std::vector<int64_t> numbers, compact_numbers;
  visit_numbers(p, [&](const char*, int64_t value) { numbers.push_back(value); });
  visit_numbers(c, [&](const char*, uint32_t value) { compact_numbers.push_back(value); });
  EXPECT_EQ(compact_numbers, numbers);
  std::vector<const void*> pointers, compact_pointers;
  visit_pointers(p, [&](const void* pointer) { pointers.push_back(pointer); });
  visit_pointers(c, [&](const void* pointer) { compact_pointers.push_back(pointer); });
  EXPECT_EQ(compact_pointers, pointers);
  EXPECT_EQ(c.block_size.quotient(5 * c.block_size.divisor + 1), 5u);
}

TEST(CompactParams, HoldTheSameSizesAndTypes) {
  const RopeCacheParams p = distinct_params();
  const CompactParams c = make_compact(p);
  EXPECT_EQ(c.num_q_heads, 1);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.head_size, 3);
  EXPECT_EQ(c.v_head_size, 4);
  EXPECT_EQ(c.rotary_dim, 5);
  EXPECT_EQ(c.rotary_dim_offset, 6);
  EXPECT_EQ(c.key_cache.layout.offset_split_log2, 7);
  EXPECT_EQ(c.key_cache.layout.dim_split_log2, 8);
  EXPECT_EQ(c.value_cache.layout.offset_split_log2, 9);
  EXPECT_EQ(c.value_cache.layout.dim_split_log2, 10);
  EXPECT_EQ(c.k_scale.head_stride, 11);
  EXPECT_EQ(c.v_scale.head_stride, 12);
  EXPECT_EQ(c.dtype, DType::bf16);
  EXPECT_EQ(c.cache_dtype, DType::fp8_e5m2);
  EXPECT_EQ(c.cos_sin.dtype, DType::fp16);
  EXPECT_EQ(c.norm_eps, 0.25f);
  EXPECT_EQ(c.inverse_head_size, 0.125f);
  EXPECT_EQ(c.axes.words[0], 13u);
  EXPECT_EQ(c.axes.words[15], 14u);
  EXPECT_EQ(c.q_out_dtype, DType::fp8_e4m3);
  EXPECT_EQ(c.q_scale.head_stride, 15);
}

template <typename Params>
std::vector<bool*> flags_of(Params& p) {
  return {&p.has_cache,
          &p.has_swa,
          &p.has_offs,
          &p.is_neox,
          &p.match_unfused,
          &p.pos.is_int64,
          &p.offs.is_int64,
          &p.slot_mapping.is_int64,
          &p.swa_slot_mapping.is_int64,
          &p.cos_sin.is_full_width,
          &p.q_weight.is_fp32,
          &p.k_weight.is_fp32,
          &p.weight_plus_one};
}

TEST(CompactParams, HoldTheSameFlags) {
  RopeCacheParams p = distinct_params();
  for (size_t set = 0; set < flags_of(p).size(); ++set) {
    for (bool* flag : flags_of(p)) *flag = false;
    *flags_of(p)[set] = true;
    CompactParams c = make_compact(p);
    for (size_t i = 0; i < flags_of(c).size(); ++i)
      EXPECT_EQ(*flags_of(c)[i], i == set) << "flag " << i << " of " << set;
  }
}

TEST(CompactParams, EveryNumberMustFitInThirtyOneBits) {
  const RopeCacheParams good = distinct_params();
  for (const int64_t too_large : {int64_t{1} << 31, int64_t{1} << 32, INT64_MAX}) {
    RopeCacheParams p = good;
    std::vector<std::pair<const char*, int64_t*>> numbers;
    visit_numbers(p, [&](const char* name, int64_t& value) { numbers.emplace_back(name, &value); });
    for (const auto& [name, number] : numbers) {
      const int64_t before = *number;
      const int64_t largest = number == &p.cos_sin.row_stride ? kMaxByteAddressedStride : INT32_MAX;
      for (const int64_t value : {too_large, largest + 1}) {
        *number = value;
        EXPECT_FALSE(is_compact(p)) << name << " of " << value;
      }
      *number = largest;
      EXPECT_TRUE(is_compact(p)) << name;
      *number = before;
    }
  }
}

}  // namespace
}  // namespace kvrope
