// rope and reshape_and_cache for C++ callers: one after the other they are the fused call with match_unfused,
// to the bit; what each refuses, and its words.
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "fault.h"
#include "small_call.h"

namespace kvrope {
namespace {

RopeArguments rope_half(const FusedArguments& args) {
  return {args, args.q, args.k};
}

ReshapeAndCacheArguments cache_half(const FusedArguments& args, const at::Tensor& k) {
  return {args, k};
}

class Halves : public testing::TestWithParam<CallOptions> {};

TEST_P(Halves, AreTheFusedCall) {
  KVROPE_SKIP_WITHOUT(GetParam().device);
  FusedArguments args = small_call(GetParam());
  args.offs = integers({1, -3, 0, 2, -12}, GetParam());
  args.k_scale = at::tensor({0.3f, 3.0f}).to(GetParam().device);
  FusedArguments fused = args;
  fused.match_unfused = true;
  fused.key_cache = args.key_cache.clone(), fused.value_cache = args.value_cache.clone();
  const FusedOutputs expected = fused_qk_rope_reshape_and_cache(fused);

  const RopeOutputs rotated = rope(rope_half(args));
  EXPECT_EQ(rotated.q_out.sizes(), args.q.sizes());
  ASSERT_TRUE(rotated.k_out.has_value());
  reshape_and_cache(cache_half(args, *rotated.k_out));
  check(GetParam().device);
  EXPECT_TRUE(is_same_bits(rotated.q_out, expected.q_out.view(args.q.sizes())));
  EXPECT_TRUE(is_same_bits(*rotated.k_out, expected.k_out));
  EXPECT_TRUE(is_same_bits(args.key_cache, expected.key_cache));
  EXPECT_TRUE(is_same_bits(args.value_cache, expected.value_cache));
}

TEST_P(Halves, RotateInPlaceWithAndWithoutKeys) {
  KVROPE_SKIP_WITHOUT(GetParam().device);
  const FusedArguments args = small_call(GetParam());
  const RopeOutputs expected = rope(rope_half(args));
  RopeArguments queries = rope_half(args), both = rope_half(args);
  queries.k.reset();
  queries.q_out = queries.q = args.q.clone();
  both.q_out = both.q = args.q.clone();
  both.k_out = both.k = args.k.clone();
  const RopeOutputs of_queries = rope(queries);
  EXPECT_FALSE(of_queries.k_out.has_value());
  rope(both);
  EXPECT_TRUE(is_same_bits(queries.q, expected.q_out));
  EXPECT_TRUE(is_same_bits(both.q, expected.q_out));
  EXPECT_TRUE(is_same_bits(*both.k, *expected.k_out));
}

std::vector<CallOptions> options_of_halves() {
  std::vector<CallOptions> all;
  for (const c10::Device device : test_devices()) {
    all.push_back({.device = device});
    all.push_back({.device = device, .dtype = at::kHalf, .cache = "fp8_e4m3", .kind = CacheKind::split});
    all.push_back({.device = device,
                   .dtype = at::kFloat,
                   .cache = "uint8",
                   .kind = CacheKind::shuffled,
                   .is_neox = false,
                   .is_full_width = true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Calls, Halves, testing::ValuesIn(options_of_halves()),
                         [](const auto& info) { return name_of(info.param); });

// A row with no slot is not cached, a call without rows does nothing.
TEST(HalvesOfNothing, AreFine) {
  const FusedArguments args = small_call({});
  const at::Tensor keys = args.key_cache.clone(), values = args.value_cache.clone();
  RopeArguments no_rows = rope_half(args);
  no_rows.q = args.q.slice(0, 0, 0), no_rows.pos = args.pos.slice(0, 0, 0);
  const RopeOutputs outputs = rope(no_rows);
  EXPECT_EQ(outputs.q_out.size(0), 0);
  EXPECT_TRUE(is_same_bits(*outputs.k_out, args.k)) << "KV-only rows are copied";
  no_rows.k.reset();
  EXPECT_EQ(rope(no_rows).q_out.size(0), 0);

  ReshapeAndCacheArguments write = cache_half(args, args.k);
  write.slot_mapping = args.slot_mapping.slice(0, 0, 0);
  reshape_and_cache(write);
  write.k = args.k.slice(0, 0, 0), write.v = args.v.slice(0, 0, 0);
  reshape_and_cache(write);
  EXPECT_TRUE(is_same_bits(args.key_cache, keys));
  EXPECT_TRUE(is_same_bits(args.value_cache, values));
}

template <typename Arguments>
struct BadHalf {
  std::string text;
  std::function<void(Arguments&)> change;
};

template <typename Error>
std::string text_thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

TEST(HalvesThatDoNotFit, AreNamed) {
  const FusedArguments args = small_call({});
  const std::vector<BadHalf<RopeArguments>> bad_rope = {
      {"rope: k_out: expected none, since there is no k, got one",
       [](auto& a) { a.k_out = at::empty_like(*a.k), a.k.reset(); }},
      {"rope: k: expected a number of heads that divides the 6 of q, got 4",
       [](auto& a) {
         a.k = at::zeros({7, 4, 16}, a.q.options());
       }},
      {"rope: k: expected at least as many rows as q, 5, got 4", [](auto& a) { a.k = a.k->slice(0, 0, 4); }},
      {"rope: q_out: expected shape (T=5, QH=6, D=16), got (5, 96)",
       [](auto& a) {
         a.q_out = at::empty({5, 96}, a.q.options());
       }},
      {"rope: k: expected a tensor on cpu like q, got meta", [](auto& a) { a.k = a.k->to(at::kMeta); }},
      {"rope: k_weight: expected none, since there is no k, got one",
       [](auto& a) { a.k_weight = at::ones({16}, a.q.options()), a.k.reset(), a.k_out.reset(); }},
      {"rope: q_scale: expected none, since q_out is bfloat16", [](auto& a) { a.q_scale = at::ones({}); }},
      {"rope: q_scale: expected shape () or (1,), without k, got (2,)",
       [](auto& a) {
         a.k.reset(), a.k_out.reset();
         a.q_out = at::empty(a.q.sizes(), at::kFloat8_e4m3fn), a.q_scale = at::ones({2});
       }},
      {"rope: mrope_section: expected three sizes of at least 0 with sum rotary_dim / 2 = 4, got (4,)",
       [](auto& a) { a.mrope_section = std::vector<int64_t>{4}; }},
  };
  for (const auto& bad : bad_rope) {
    RopeArguments half = rope_half(args);
    bad.change(half);
    const std::string text = text_thrown_by<c10::ValueError>([&] { rope(half); });
    EXPECT_EQ(text.substr(0, bad.text.size()), bad.text) << text;
  }
  const std::vector<BadHalf<ReshapeAndCacheArguments>> bad_write = {
      {"reshape_and_cache: k: expected an even head size from 2 to 512, got 15",
       [](auto& a) { a.k = a.k.slice(2, 0, 15); }},
      {"reshape_and_cache: v: expected shape (Tk=7, KH=2, Dv), got (5, 2, 24)",
       [](auto& a) { a.v = a.v.slice(0, 0, 5); }},
      {"reshape_and_cache: v: expected a tensor on cpu like k, got meta",
       [](auto& a) { a.v = a.v.to(at::kMeta); }},
      {"reshape_and_cache: k_scale: expected shape (), (1,) or (KH=2,), got (3,)",
       [](auto& a) { a.k_scale = at::ones({3}); }},
      {"reshape_and_cache: value_cache: expected memory of its own, got elements shared with key_cache",
       [](auto& a) { a.value_cache = a.key_cache, a.v = a.k; }},
      {"reshape_and_cache: key_cache: expected memory of its own, got elements shared with k",
       [](auto& a) { a.k = a.key_cache.flatten(0, 1).slice(0, 0, 7); }},
  };
  for (const auto& bad : bad_write) {
    ReshapeAndCacheArguments half = cache_half(args, args.k);
    bad.change(half);
    const std::string text = text_thrown_by<c10::ValueError>([&] { reshape_and_cache(half); });
    EXPECT_EQ(text.substr(0, bad.text.size()), bad.text) << text;
  }
}

TEST(HalvesOutOfRange, AreNamed) {
  const FusedArguments args = small_call({});
  RopeArguments rotation = rope_half(args);
  rotation.pos = integers({0, 31, 7, 32, 12}, {});
  EXPECT_EQ(text_thrown_by<c10::IndexError>([&] { rope(rotation); }),
            "rope: pos[3] is 32, expected 0 to 31 (the rows of cos_sin)");
  ReshapeAndCacheArguments write = cache_half(args, args.k);
  write.slot_mapping = integers({9, -1, 96}, {});
  EXPECT_EQ(text_thrown_by<c10::IndexError>([&] { reshape_and_cache(write); }),
            "reshape_and_cache: slot_mapping[2] is 96, expected a slot below 96 (num_blocks * block_size)");
}

}  // namespace
}  // namespace kvrope
