// The C++ call on small tensors, against a reference in double arithmetic written from the specification.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "fault.h"
#include "small_call.h"

namespace kvrope {
namespace {

// Exact values of an output and how far the arithmetic may be off before it is rounded; double, on the CPU.
struct Expected {
  at::Tensor exact, slack;
};

// The first `num_rotated` rows of x rotated, all other elements as they are.
Expected rotate(const at::Tensor& x, int64_t num_rotated, const FusedArguments& args) {
  const at::Tensor input = x.cpu().to(at::kDouble), table = args.cos_sin.cpu().to(at::kDouble);
  at::Tensor positions = args.pos.cpu().to(at::kLong);
  if (args.offs) positions = positions + args.offs->cpu().to(at::kLong);
  const int64_t rotary_dim = args.rotary_dim.value_or(x.size(2));
  const bool is_full_width = table.size(1) == 2 * rotary_dim;

  Expected result = {input.clone(), at::zeros_like(input)};
  const auto in = input.accessor<double, 3>();
  const auto angle = table.accessor<double, 2>();
  auto exact = result.exact.accessor<double, 3>();
  auto slack = result.slack.accessor<double, 3>();
  for (int64_t t = 0; t < num_rotated; ++t) {
    const auto row = angle[positions[t].item<int64_t>()];
    for (int64_t h = 0; h < x.size(1); ++h) {
      for (int64_t i = 0; i < rotary_dim / 2; ++i) {
        const int64_t first = args.is_neox ? i : 2 * i,
                      second = args.is_neox ? i + rotary_dim / 2 : 2 * i + 1;
        const int64_t sine = is_full_width ? rotary_dim : rotary_dim / 2;
        const int64_t first_column = is_full_width ? first : i, second_column = is_full_width ? second : i;
        const int64_t at_a = args.rotary_dim_offset + first, at_b = args.rotary_dim_offset + second;
        const double a = in[t][h][at_a], b = in[t][h][at_b];
        const double a_cos = a * row[first_column], b_sin = b * row[first_column + sine];
        const double b_cos = b * row[second_column], a_sin = a * row[second_column + sine];
        exact[t][h][at_a] = a_cos - b_sin;
        exact[t][h][at_b] = b_cos + a_sin;
        slack[t][h][at_a] = 2e-6 * (std::abs(a_cos) + std::abs(b_sin));
        slack[t][h][at_b] = 2e-6 * (std::abs(b_cos) + std::abs(a_sin));
      }
    }
  }
  return result;
}

Expected divide_by(const Expected& x, const std::optional<at::Tensor>& scale) {
  if (!scale) return x;
  const at::Tensor per_head = scale->cpu().to(at::kDouble).reshape({-1, 1});
  const at::Tensor exact = x.exact / per_head;
  return {exact, x.slack / per_head.abs() + exact.abs() * 1e-6};
}

// Rounding keeps order: what lies between two values is rounded to something between their roundings.
void expect_rounded(const at::Tensor& got, const Expected& expected, const char* name) {
  const at::Tensor actual = got.cpu().to(at::kDouble);
  const at::Tensor low = (expected.exact - expected.slack).to(got.scalar_type()).to(at::kDouble);
  const at::Tensor high = (expected.exact + expected.slack).to(got.scalar_type()).to(at::kDouble);
  ASSERT_EQ(actual.sizes(), expected.exact.sizes()) << name;
  EXPECT_TRUE(actual.ge(low).logical_and(actual.le(high)).all().item<bool>()) << name << ": got\n"
                                                                              << actual << "\nexpected\n"
                                                                              << expected.exact;
}

// The elements of one slot: (KH, D), or (KH, D/x, x) of split keys. A view.
at::Tensor slot_of(const at::Tensor& cache, CacheKind kind, bool is_key, int64_t slot) {
  const at::Tensor block = cache.select(0, slot / kBlockSize);
  const int64_t offset = slot % kBlockSize;
  if (kind == CacheKind::flash) return block.select(0, offset);
  if (is_key || kind == CacheKind::split) return block.select(2, offset);
  return block.select(1, offset / kX).select(2, offset % kX);
}

// One cache holds the rows of `expected` at their slots, and every other bit of `before`.
void expect_cache(const at::Tensor& cache, const at::Tensor& before, const Expected& expected,
                  const std::vector<int64_t>& slots, const CallOptions& options, bool is_key) {
  const at::Tensor as_numbers = options.cache == "uint8" ? cache.view(at::kFloat8_e4m3fn) : cache;
  const at::Tensor restored = bits_view(cache).clone(), before_bits = bits_view(before);
  for (size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] < 0) continue;
    const at::Tensor stored = slot_of(as_numbers, options.kind, is_key, slots[row]);
    const auto index = static_cast<int64_t>(row);
    expect_rounded(stored.reshape({kKvHeads, -1}), {expected.exact[index], expected.slack[index]},
                   is_key ? "key_cache" : "value_cache");
    slot_of(restored, options.kind, is_key, slots[row])
        .copy_(slot_of(before_bits, options.kind, is_key, slots[row]));
  }
  EXPECT_TRUE(at::equal(restored, before_bits))
      << (is_key ? "key_cache" : "value_cache") << " outside the slots";
}

// Runs the call and compares all that it returns and writes. slots[t] is where row t is to be found.
void expect_reference(FusedArguments args, const std::vector<int64_t>& slots, const CallOptions& options) {
  const at::Tensor key_cache = args.key_cache.clone(), value_cache = args.value_cache.clone();
  const Expected q = rotate(args.q, args.q.size(0), args), k = rotate(args.k, args.q.size(0), args);
  const at::Tensor v = args.v.cpu().to(at::kDouble);

  const FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
  check(options.device);
  EXPECT_EQ(outputs.q_out.sizes(), at::IntArrayRef({args.q.size(0), args.q.size(1) * args.q.size(2)}));
  expect_rounded(outputs.q_out.view(args.q.sizes()), q, "q_out");
  expect_rounded(outputs.k_out, k, "k_out");
  EXPECT_TRUE(outputs.key_cache.is_same(args.key_cache));
  EXPECT_TRUE(outputs.value_cache.is_same(args.value_cache));
  expect_cache(args.key_cache, key_cache, divide_by(k, args.apply_scale ? args.k_scale : std::nullopt), slots,
               options, true);
  const Expected values = {v, at::zeros_like(v)};
  expect_cache(args.value_cache, value_cache,
               divide_by(values, args.apply_scale ? args.v_scale : std::nullopt), slots, options, false);
}

const std::vector<int64_t> kSlots = {9, -1, 95, 23, 30, 71, -1};  // of small_call

std::vector<CallOptions> all_options() {
  std::vector<CallOptions> all;
  for (const c10::Device device : test_devices()) {
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
      for (const char* cache : {"auto", "fp8_e4m3", "fp8_e5m2", "uint8"}) {
        for (const CacheKind kind : {CacheKind::flash, CacheKind::split, CacheKind::shuffled}) {
          for (const bool is_neox : {true, false}) {
            all.push_back({device, dtype, cache, kind, is_neox, false});
          }
          all.push_back({device, dtype, cache, kind, dtype == at::kHalf, true});
        }
      }
    }
  }
  return all;
}

class Api : public testing::TestWithParam<CallOptions> {};

TEST_P(Api, MatchesTheReference) {
  KVROPE_SKIP_WITHOUT(GetParam().device);
  expect_reference(small_call(GetParam()), kSlots, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Calls, Api, testing::ValuesIn(all_options()),
                         [](const auto& info) { return name_of(info.param); });

class ApiOn : public testing::TestWithParam<c10::Device> {
 protected:
  void SetUp() override { KVROPE_SKIP_WITHOUT(GetParam()); }
  CallOptions options() const { return {.device = GetParam()}; }
};

INSTANTIATE_TEST_SUITE_P(Devices, ApiOn, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param.is_cuda() ? "cuda" : "cpu"; });

TEST_P(ApiOn, ScalesApplyToSixteenBitCachesUnlessToldOtherwise) {
  FusedArguments args = small_call(options());
  args.k_scale = at::full({1}, 0.37, at::kFloat).to(GetParam());
  args.v_scale = at::tensor({3.0f, 0.1f}).to(GetParam());
  expect_reference(args, kSlots, options());
  args.apply_scale = false;
  expect_reference(args, kSlots, options());
}

TEST_P(ApiOn, IgnoredScalesMayHaveAnyForm) {
  FusedArguments args = small_call(options());
  args.apply_scale = false;
  args.k_scale = at::zeros({3, 4}, at::kDouble);
  args.v_scale = at::Tensor();
  expect_reference(args, kSlots, options());
  args.k_scale = args.key_cache;  // not read, so that nothing is shared
  args.v_scale = std::nullopt;
  expect_reference(args, kSlots, options());
}

TEST_P(ApiOn, OffsetsAreAddedToPositions) {
  FusedArguments args = small_call(options());
  args.offs = integers({31, -31, 3, -7, 0}, options());
  expect_reference(args, kSlots, options());
}

TEST_P(ApiOn, WindowTableTranslatesSlots) {
  FusedArguments args = small_call(options());
  std::vector<int64_t> window(96, 40);
  window[9] = 0, window[95] = 95, window[23] = -1, window[30] = -9, window[71] = 24;
  args.swa_slot_mapping = integers(window, options(), at::kInt);
  expect_reference(args, {0, -1, 95, -1, -1, 24, -1}, options());
}

TEST_P(ApiOn, WholeHeadWithoutRotaryDim) {
  FusedArguments args = small_call(options());
  args.rotary_dim = std::nullopt;
  args.rotary_dim_offset = 0;
  const at::Tensor angles = at::randn({kPositions, kHeadSize / 2});
  args.cos_sin = at::cat({angles.cos(), angles.sin()}, 1).to(GetParam());
  expect_reference(args, kSlots, options());
}

TEST_P(ApiOn, TablesOfSixteenBits) {
  FusedArguments args = small_call(options());
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    args.cos_sin = args.cos_sin.to(dtype);
    expect_reference(args, kSlots, options());
  }
}

TEST_P(ApiOn, StridedViewsGiveTheSameBits) {
  const FusedArguments plain = small_call(options());
  const FusedOutputs expected = fused_qk_rope_reshape_and_cache(plain);
  // q, k and v interleaved in one buffer whose elements lie 3 apart, from an odd offset on.
  FusedArguments args = small_call(options());
  const auto strided = [](const at::Tensor& x) {
    const at::Tensor buffer = at::zeros({x.size(0), x.size(1) + 1, x.size(2) + 1, 3}, x.options());
    at::Tensor view = buffer.narrow(1, 1, x.size(1)).narrow(2, 1, x.size(2)).select(3, 1);
    view.copy_(x);
    return view;
  };
  args.q = strided(args.q), args.k = strided(args.k), args.v = strided(args.v);
  args.k_out = strided(args.k);
  args.cos_sin = args.cos_sin.t().contiguous().t();
  args.key_cache = small_call(options()).key_cache.transpose(1, 2).contiguous().transpose(1, 2);
  const FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
  EXPECT_TRUE(is_same_bits(outputs.q_out, expected.q_out));
  EXPECT_TRUE(is_same_bits(outputs.k_out, expected.k_out));
  EXPECT_TRUE(is_same_bits(args.key_cache, plain.key_cache));
  EXPECT_TRUE(is_same_bits(args.value_cache, plain.value_cache));
}

TEST_P(ApiOn, GivenOutputsAreWritten) {
  FusedArguments args = small_call(options());
  const FusedOutputs expected = fused_qk_rope_reshape_and_cache(args);
  EXPECT_FALSE(expected.zeros_out.has_value());
  args.q_out = at::full_like(args.q, NAN);
  args.k_out = at::full_like(args.k, NAN);
  args.zeros_out = at::full_like(args.q, NAN);
  const FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
  EXPECT_EQ(outputs.q_out.data_ptr(), args.q_out->data_ptr());
  EXPECT_TRUE(outputs.k_out.is_same(*args.k_out));
  EXPECT_TRUE(outputs.zeros_out->is_same(*args.zeros_out));
  EXPECT_TRUE(is_same_bits(*args.q_out, expected.q_out));
  EXPECT_TRUE(is_same_bits(*args.k_out, expected.k_out));
  EXPECT_TRUE(is_same_bits(*args.zeros_out, at::zeros_like(args.q)));
}

TEST_P(ApiOn, InPlaceGivesTheSameBits) {
  FusedArguments args = small_call(options());
  const FusedOutputs expected = fused_qk_rope_reshape_and_cache(args);
  args.q_out = args.q;
  args.k_out = args.k;
  fused_qk_rope_reshape_and_cache(args);
  EXPECT_TRUE(is_same_bits(args.q, expected.q_out));
  EXPECT_TRUE(is_same_bits(args.k, expected.k_out));
}

TEST_P(ApiOn, ZerosAreAllocatedWhenAskedFor) {
  FusedArguments args = small_call(options());
  args.output_zeros = true;
  const FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
  ASSERT_TRUE(outputs.zeros_out.has_value());
  EXPECT_EQ(outputs.zeros_out->sizes(), args.q.sizes());
  EXPECT_TRUE(is_same_bits(*outputs.zeros_out, at::zeros_like(args.q)));
}

TEST_P(ApiOn, NoQueriesOrNoRowsAtAll) {
  FusedArguments args = small_call(options());
  args.q = args.q.narrow(0, 0, 0);
  args.pos = args.pos.narrow(0, 0, 0);
  expect_reference(args, kSlots, options());  // every row is KV-only
  args.k = args.k.narrow(0, 0, 0), args.v = args.v.narrow(0, 0, 0);
  args.slot_mapping = args.slot_mapping.narrow(0, 0, 0);
  expect_reference(args, {}, options());
}

TEST_P(ApiOn, PaddingRowsWithoutAPositionBecomeZero) {
  FusedArguments args = small_call(options());
  args.pos = integers({0, 9999, 7, 7, 12}, options());  // row 1 is padding
  const FusedOutputs outputs = fused_qk_rope_reshape_and_cache(args);
  EXPECT_NO_THROW(check(GetParam()));
  EXPECT_TRUE(is_same_bits(outputs.q_out[1], at::zeros_like(outputs.q_out[1])));
  EXPECT_TRUE(is_same_bits(outputs.k_out[1], at::zeros_like(outputs.k_out[1])));
}

}  // namespace
}  // namespace kvrope
