// Tensors to parameters: the address that the parameters give for an element is the address of that element.
#include "make_params.h"

#include <gtest/gtest.h>

#include <vector>

#include "small_call.h"

namespace kvrope {
namespace {

const void* address_in(const at::Tensor& tensor, const std::vector<int64_t>& index) {
  int64_t offset = 0;
  for (size_t i = 0; i < index.size(); ++i) offset += index[i] * tensor.stride(static_cast<int64_t>(i));
  return static_cast<const char*>(tensor.const_data_ptr()) + offset * tensor.element_size();
}

const void* address_at(const void* data, int64_t offset, int64_t element_size) {
  return static_cast<const char*>(data) + offset * element_size;
}

void expect_rows(const HeadRows& rows, const at::Tensor& tensor) {
  for (int64_t t = 0; t < tensor.size(0); ++t) {
    for (int64_t h = 0; h < tensor.size(1); ++h) {
      for (int64_t d = 0; d < tensor.size(2); ++d) {
        const int64_t offset = t * rows.token_stride + h * rows.head_stride + d * rows.dim_stride;
        ASSERT_EQ(address_at(rows.data, offset, tensor.element_size()), address_in(tensor, {t, h, d}));
      }
    }
  }
}

std::vector<int64_t> index_in_cache(const at::Tensor& cache, CacheKind kind, bool is_key, int64_t block,
                                    int64_t offset, int64_t head, int64_t dim) {
  if (kind == CacheKind::flash) return {block, offset, head, dim};
  const int64_t x = cache.size(cache.dim() - 1);
  if (is_key) return {block, head, dim / x, offset, dim % x};
  if (kind == CacheKind::split) return {block, head, dim, offset};
  return {block, head, offset / x, dim, offset % x};
}

void expect_cache(const PagedCache& params, const at::Tensor& cache, CacheKind kind, bool is_key,
                  int64_t block_size, int64_t head_size) {
  for (int64_t block = 0; block < cache.size(0); ++block) {
    for (int64_t offset = 0; offset < block_size; ++offset) {
      for (int head = 0; head < kKvHeads; ++head) {
        for (int dim = 0; dim < head_size; ++dim) {
          const int64_t at = params.layout.row_offset(block, offset, head) + params.layout.dim_offset(dim);
          ASSERT_EQ(address_at(params.data, at, cache.element_size()),
                    address_in(cache, index_in_cache(cache, kind, is_key, block, offset, head, dim)))
              << "block " << block << " offset " << offset << " head " << head << " dim " << dim;
        }
      }
    }
  }
}

void expect_params_of(const FusedArguments& args, CacheKind kind) {
  const RopeCacheParams p = make_params(args);
  expect_rows(p.q, args.q);
  expect_rows(p.k, args.k);
  expect_rows(p.v, args.v);
  expect_rows(p.q_out, *args.q_out);
  expect_rows(p.k_out, *args.k_out);
  const int64_t block_size = args.key_cache.size(kind == CacheKind::flash ? 1 : 3);
  EXPECT_EQ(p.block_size.divisor, block_size);
  EXPECT_EQ(p.num_slots, block_size * args.key_cache.size(0));
  expect_cache(p.key_cache, args.key_cache, kind, true, block_size, args.k.size(2));
  expect_cache(p.value_cache, args.value_cache, kind, false, block_size, args.v.size(2));
}

FusedArguments call_with_outputs(const CallOptions& options) {
  FusedArguments args = small_call(options);
  args.q_out = at::empty_like(args.q);
  args.k_out = at::empty_like(args.k);
  return args;
}

// The same shape with its dimensions in another order in memory, two elements apart and from an odd offset
// on.
at::Tensor shuffled_in_memory(const at::Tensor& tensor, const std::vector<int64_t>& order) {
  std::vector<int64_t> shape;
  for (const int64_t dim : order) shape.push_back(tensor.size(dim) + 1);
  shape.push_back(2);
  at::Tensor view = at::empty(shape, tensor.options()).select(static_cast<int64_t>(order.size()), 1);
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    view = view.narrow(static_cast<int64_t>(i), 1, tensor.size(order[i]));
    back[order[i]] = static_cast<int64_t>(i);
  }
  return view.permute(back);
}

class MakeParams : public testing::TestWithParam<CacheKind> {};

TEST_P(MakeParams, DenseTensors) {
  for (const char* cache : {"auto", "fp8_e4m3", "uint8"}) {
    expect_params_of(call_with_outputs({.cache = cache, .kind = GetParam()}), GetParam());
  }
}

TEST_P(MakeParams, StridedTensors) {
  FusedArguments args = call_with_outputs({.kind = GetParam()});
  for (at::Tensor* rows : {&args.q, &args.k, &args.v, &*args.q_out, &*args.k_out}) {
    *rows = shuffled_in_memory(*rows, {1, 2, 0});
  }
  const auto backwards = [](const at::Tensor& cache) {
    std::vector<int64_t> order;
    for (int64_t dim = cache.dim() - 1; dim >= 0; --dim) order.push_back(dim);
    return shuffled_in_memory(cache, order);
  };
  args.key_cache = backwards(args.key_cache);
  args.value_cache = backwards(args.value_cache);
  expect_params_of(args, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Kinds, MakeParams,
                         testing::Values(CacheKind::flash, CacheKind::split, CacheKind::shuffled),
                         [](const auto& info) { return name_of(info.param); });

TEST(MakeParamsOf, EveryWidthOfTheInnermostSplit) {
  for (int64_t x = 1; x <= 16; x *= 2) {
    FusedArguments args = call_with_outputs({.kind = CacheKind::split});
    args.key_cache = at::empty({2, kKvHeads, kHeadSize / x, 16, x}, args.k.options());
    args.value_cache = at::empty({2, kKvHeads, kValueHeadSize, 16}, args.k.options());
    expect_params_of(args, CacheKind::split);
    args.value_cache = at::empty({2, kKvHeads, 16 / x, kValueHeadSize, x}, args.k.options());
    expect_params_of(args, CacheKind::shuffled);
  }
}

TEST(MakeParamsOf, BlocksOfOneSlot) {
  FusedArguments args = call_with_outputs({});
  args.key_cache = at::empty({5, 1, kKvHeads, kHeadSize}, args.k.options());
  args.value_cache = at::empty({5, 1, kKvHeads, kValueHeadSize}, args.k.options());
  expect_params_of(args, CacheKind::flash);
  args.flash_layout = false;
  args.key_cache = at::empty({5, kKvHeads, 2, 1, 8}, args.k.options());
  args.value_cache = at::empty({5, kKvHeads, kValueHeadSize, 1}, args.k.options());
  expect_params_of(args, CacheKind::split);
}

// The stride of an axis of size 1 may be anything; it must not cost the wide vectors.
TEST(MakeParamsOf, StridesOfSingleRowsSayNothing) {
  FusedArguments args = call_with_outputs({});
  args.q = at::as_strided(args.q, {1, kQHeads, kHeadSize}, {777, kHeadSize, 1});
  const RopeCacheParams p = make_params(args);
  EXPECT_EQ(p.q.token_stride % 8, 0);
  EXPECT_EQ(p.q.head_stride, kHeadSize);
}

TEST(MakeParamsOf, OptionsAndSizes) {
  FusedArguments args = call_with_outputs({.is_neox = false, .is_full_width = true});
  args.k_scale = at::full({}, 2, at::kFloat);
  args.v_scale = at::ones({kKvHeads, 3}).select(1, 1);
  RopeCacheParams p = make_params(args);
  EXPECT_EQ(p.num_tokens, kTokens);
  EXPECT_EQ(p.num_kv_rows, kKvRows);
  EXPECT_EQ(p.num_q_heads, kQHeads);
  EXPECT_EQ(p.num_kv_heads, kKvHeads);
  EXPECT_EQ(p.head_size, kHeadSize);
  EXPECT_EQ(p.v_head_size, kValueHeadSize);
  EXPECT_EQ(p.rotary_dim, kRotaryDim);
  EXPECT_EQ(p.rotary_dim_offset, kRotaryOffset);
  EXPECT_TRUE(p.cos_sin.is_full_width);
  EXPECT_FALSE(p.is_neox);
  EXPECT_TRUE(p.has_cache);
  EXPECT_FALSE(p.has_swa);
  EXPECT_FALSE(p.has_offs);
  EXPECT_EQ(p.k_scale.head_stride, 0);
  EXPECT_EQ(p.v_scale.head_stride, 3);
  EXPECT_EQ(p.slot_mapping.size, 6);
  EXPECT_TRUE(p.slot_mapping.is_int64);
  EXPECT_FALSE(p.pos.is_int64);
  EXPECT_EQ(p.zeros_out.data, nullptr);

  args.apply_scale = false;
  args.offs = args.pos;
  args.swa_slot_mapping = at::empty({0}, at::kLong);
  args.rotary_dim = std::nullopt;
  args.rotary_dim_offset = 0;
  p = make_params(args);
  EXPECT_EQ(p.k_scale.data, nullptr);
  EXPECT_EQ(p.v_scale.data, nullptr);
  EXPECT_TRUE(p.has_offs);
  EXPECT_TRUE(p.has_swa);  // although it has no data
  EXPECT_EQ(p.rotary_dim, kHeadSize);
  EXPECT_FALSE(p.cos_sin.is_full_width);
}

TEST(MakeParamsOf, Weights) {
  FusedArguments args = call_with_outputs({.dtype = at::kBFloat16});
  RopeCacheParams p = make_params(args);
  EXPECT_EQ(p.q_weight.data, nullptr);
  EXPECT_EQ(p.k_weight.data, nullptr);
  args.q_weight = at::ones({kHeadSize, 3}, args.q.options()).select(1, 1);
  args.k_weight = at::ones({kHeadSize});
  args.eps = 0.25;
  args.weight_plus_one = true;
  p = make_params(args);
  EXPECT_EQ(p.q_weight.data, args.q_weight->const_data_ptr());
  EXPECT_EQ(p.q_weight.stride, 3);
  EXPECT_FALSE(p.q_weight.is_fp32);
  EXPECT_EQ(p.k_weight.data, args.k_weight->const_data_ptr());
  EXPECT_TRUE(p.k_weight.is_fp32);
  EXPECT_EQ(p.norm_eps, 0.25f);
  EXPECT_TRUE(p.weight_plus_one);
  EXPECT_EQ(make_params(args, Operation::reshape_and_cache).k_weight.data, nullptr);
}

// What belongs to the other half is not looked at.
TEST(MakeParamsOf, Halves) {
  FusedArguments args = call_with_outputs({.cache = "fp8_e4m3"});
  const RopeCacheParams fused = make_params(args), rotation = make_params(args, Operation::rope);
  EXPECT_FALSE(rotation.has_cache);
  EXPECT_EQ(rotation.cache_dtype, rotation.dtype);
  EXPECT_EQ(rotation.num_kv_rows, kKvRows);
  EXPECT_EQ(rotation.v.data, nullptr);
  EXPECT_EQ(rotation.k_out.data, fused.k_out.data);
  EXPECT_EQ(rotation.rotary_dim_offset, kRotaryOffset);

  FusedArguments queries = args;
  queries.k = at::Tensor();
  const RopeCacheParams alone = make_params(queries, Operation::rope);
  EXPECT_EQ(alone.num_kv_heads, 0);
  EXPECT_EQ(alone.num_kv_rows, kTokens);

  args.k_out.reset();
  const RopeCacheParams write = make_params(args, Operation::reshape_and_cache);
  EXPECT_TRUE(write.has_cache && write.match_unfused);
  EXPECT_FALSE(fused.match_unfused);
  EXPECT_EQ(write.cache_dtype, DType::fp8_e4m3);
  EXPECT_EQ(write.num_tokens, 0);
  EXPECT_EQ(write.num_q_heads, 0);
  EXPECT_EQ(write.rotary_dim, 0);
  EXPECT_EQ(write.num_kv_rows, kKvRows);
  EXPECT_EQ(write.k_out.data, nullptr);
  EXPECT_EQ(write.k_scale.data, fused.k_scale.data);
}

TEST(MakeParamsOf, CacheTypes) {
  const auto type_of = [](const std::string& cache, at::ScalarType dtype, const char* name = "auto") {
    FusedArguments args = call_with_outputs({.dtype = dtype, .cache = cache});
    args.kv_cache_dtype = name;
    return make_params(args).cache_dtype;
  };
  EXPECT_EQ(type_of("auto", at::kHalf), DType::fp16);
  EXPECT_EQ(type_of("auto", at::kBFloat16), DType::bf16);
  EXPECT_EQ(type_of("auto", at::kFloat), DType::fp32);
  EXPECT_EQ(type_of("fp8_e4m3", at::kHalf), DType::fp8_e4m3);
  EXPECT_EQ(type_of("fp8_e5m2", at::kHalf), DType::fp8_e5m2);
  EXPECT_EQ(type_of("uint8", at::kHalf, "fp8"), DType::fp8_e4m3);
  EXPECT_EQ(type_of("uint8", at::kHalf, "fp8_e4m3"), DType::fp8_e4m3);
  EXPECT_EQ(type_of("uint8", at::kHalf, "fp8_e5m2"), DType::fp8_e5m2);
}

}  // namespace
}  // namespace kvrope
