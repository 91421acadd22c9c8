// Wrong rows and caches: what a call throws, and that it writes nothing before.
#include <gtest/gtest.h>

#include "error_case.h"

namespace kvrope {
namespace {

void use_split_caches(Args& a) {
  a.flash_layout = false;
  a.key_cache = like(a.k, {kNumBlocks, kKvHeads, kHeadSize / kX, kBlockSize, kX});
  a.value_cache = like(a.k, {kNumBlocks, kKvHeads, kValueHeadSize, kBlockSize});
}

const ErrorCase kRowAndCacheErrors[] = {
    {"q_missing", Error::value, "q", {"shape (T, QH, D)", "got none"}, [](Args& a) { a.q = at::Tensor(); }},
    {"q_rank", Error::value, "q", {"shape (T, QH, D)", "got (5, 96)"}, [](Args& a) { a.q = a.q.flatten(1); }},
    {"q_dtype",
     Error::type,
     "q",
     {"dtype float16 or bfloat16 or float32", "got float64"},
     [](Args& a) { a.q = a.q.to(at::kDouble); }},
    {"q_odd_head_size",
     Error::value,
     "q",
     {"even head size from 2 to 512", "got 15"},
     [](Args& a) { a.q = a.q.narrow(2, 0, 15); }},
    {"q_head_size_514",
     Error::value,
     "q",
     {"even head size from 2 to 512", "got 514"},
     [](Args& a) {
       a.q = like(a.q, {5, 6, 514});
     }},
    {"q_without_heads", Error::value, "q", {"heads", "got 0"}, [](Args& a) { a.q = a.q.narrow(1, 0, 0); }},
    {"device_without_a_kernel",
     Error::value,
     "q",
     {"device", "got meta"},
     [](Args& a) {
       for (at::Tensor* tensor :
            {&a.q, &a.k, &a.v, &a.key_cache, &a.value_cache, &a.slot_mapping, &a.pos, &a.cos_sin}) {
         *tensor = tensor->to(at::kMeta);
       }
       a.q_out = a.k_out = std::nullopt;
     }},
    {"k_missing", Error::value, "k", {"shape", "got none"}, [](Args& a) { a.k = at::Tensor(); }},
    {"k_head_size",
     Error::value,
     "k",
     {"D=16", "got (7, 2, 12)"},
     [](Args& a) { a.k = a.k.narrow(2, 0, 12); }},
    {"k_fewer_rows_than_q",
     Error::value,
     "k",
     {"as many rows as q, 5", "got 4"},
     [](Args& a) { a.k = a.k.narrow(0, 0, 4); }},
    {"k_heads_do_not_divide",
     Error::value,
     "k",
     {"divides the 6 of q", "got 4"},
     [](Args& a) {
       a.k = like(a.k, {7, 4, 16});
     }},
    {"k_dtype",
     Error::type,
     "k",
     {"dtype bfloat16", "got float16"},
     [](Args& a) { a.k = a.k.to(at::kHalf); }},
    {"v_rows", Error::value, "v", {"Tk=7", "got (6, 2, 24)"}, [](Args& a) { a.v = a.v.narrow(0, 0, 6); }},
    {"v_heads", Error::value, "v", {"KH=2", "got (7, 1, 24)"}, [](Args& a) { a.v = a.v.narrow(1, 0, 1); }},
    {"v_dtype",
     Error::type,
     "v",
     {"dtype bfloat16", "got float32"},
     [](Args& a) { a.v = a.v.to(at::kFloat); }},
    {"v_head_size_513",
     Error::value,
     "v",
     {"head size from 1 to 512", "got 513"},
     [](Args& a) {
       a.v = like(a.v, {7, 2, 513});
     }},
    {"key_cache_rank",
     Error::value,
     "key_cache",
     {"shape (num_blocks, block_size, KH=2, D=16)", "got (4, 24, 32)"},
     [](Args& a) { a.key_cache = a.key_cache.flatten(2); }},
    {"key_cache_heads",
     Error::value,
     "key_cache",
     {"KH=2", "got (4, 24, 1, 16)"},
     [](Args& a) { a.key_cache = a.key_cache.narrow(2, 0, 1); }},
    {"key_cache_without_slots",
     Error::value,
     "key_cache",
     {"block_size of at least 1", "got 0"},
     [](Args& a) { a.key_cache = a.key_cache.narrow(1, 0, 0); }},
    {"key_cache_dtype",
     Error::type,
     "key_cache",
     {"bfloat16 or float8_e4m3fn or float8_e5m2", "got float32"},
     [](Args& a) { a.key_cache = a.key_cache.to(at::kFloat); }},
    {"uint8_cache_without_a_name",
     Error::type,
     "key_cache",
     {"float8_e4m3fn", "got uint8"},
     [](Args& a) { a.key_cache = a.key_cache.to(at::kByte), a.value_cache = a.value_cache.to(at::kByte); }},
    {"cache_named_fp8_but_bf16",
     Error::type,
     "key_cache",
     {"float8_e4m3fn or uint8", "got bfloat16"},
     [](Args& a) { a.kv_cache_dtype = "fp8"; }},
    {"cache_named_otherwise",
     Error::type,
     "key_cache",
     {"float8_e5m2 or uint8", "got float8_e4m3fn"},
     [](Args& a) { a.kv_cache_dtype = "fp8_e5m2", a.key_cache = a.key_cache.to(at::kFloat8_e4m3fn); }},
    {"kv_cache_dtype_unknown",
     Error::value,
     "kv_cache_dtype",
     {"\"fp8_e4m3\"", "got \"int4\""},
     [](Args& a) { a.kv_cache_dtype = "int4"; }},
    {"value_cache_blocks",
     Error::value,
     "value_cache",
     {"num_blocks=4", "got (3, 24, 2, 24)"},
     [](Args& a) { a.value_cache = a.value_cache.narrow(0, 0, 3); }},
    {"value_cache_block_size",
     Error::value,
     "value_cache",
     {"block_size=24", "got (4, 12, 2, 24)"},
     [](Args& a) { a.value_cache = a.value_cache.narrow(1, 0, 12); }},
    {"value_cache_head_size",
     Error::value,
     "value_cache",
     {"Dv=24", "got (4, 24, 2, 16)"},
     [](Args& a) { a.value_cache = a.key_cache.clone(); }},
    {"value_cache_dtype",
     Error::type,
     "value_cache",
     {"dtype bfloat16", "got float8_e4m3fn"},
     [](Args& a) { a.value_cache = a.value_cache.to(at::kFloat8_e4m3fn); }},
    {"split_key_cache_rank",
     Error::value,
     "key_cache",
     {"(num_blocks, KH=2, D/x, block_size, x)", "got (4, 24, 2, 16)"},
     [](Args& a) { a.flash_layout = false; }},
    {"split_x_does_not_fit",
     Error::value,
     "key_cache",
     {"x a power of two", "got (4, 2, 3, 24, 8)"},
     [](Args& a) {
       use_split_caches(a), a.key_cache = like(a.k, {4, 2, 3, 24, 8});
     }},
    {"split_x_is_no_power_of_two",
     Error::value,
     "key_cache",
     {"x a power of two", "got (4, 2, 4, 24, 3)"},
     [](Args& a) {
       use_split_caches(a), a.key_cache = like(a.k, {4, 2, 4, 24, 3});
     }},
    {"split_value_cache_block_size",
     Error::value,
     "value_cache",
     {"block_size=24", "got (4, 2, 24, 16)"},
     [](Args& a) {
       use_split_caches(a), a.value_cache = like(a.k, {4, 2, 24, 16});
     }},
    {"shuffled_x_does_not_divide",
     Error::value,
     "value_cache",
     {"x=16", "block_size=24", "got (4, 2, 1, 24, 16)"},
     [](Args& a) {
       use_split_caches(a);
       a.key_cache = like(a.k, {4, 2, 1, 24, 16}), a.value_cache = like(a.k, {4, 2, 1, 24, 16});
     }},
    {"shuffled_x_differs",
     Error::value,
     "value_cache",
     {"x=8", "got (4, 2, 6, 24, 4)"},
     [](Args& a) {
       use_split_caches(a), a.value_cache = like(a.k, {4, 2, 6, 24, 4});
     }},
};

class RowOrCacheError : public testing::TestWithParam<ErrorParam> {};

TEST_P(RowOrCacheError, IsNamedBeforeAnythingIsWritten) {
  expect_error(std::get<0>(GetParam()), std::get<1>(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(RowsAndCaches, RowOrCacheError,
                         testing::Combine(testing::ValuesIn(kRowAndCacheErrors),
                                          testing::ValuesIn(test_devices())),
                         error_case_name);

}  // namespace
}  // namespace kvrope
