// The table builder for C++ callers: its values in double arithmetic, its errors. Its bits are compared with
// transformers' in tests/python/test_cos_sin_table.py.
#include "cos_sin_table.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "small_call.h"

namespace kvrope {
namespace {

RopeScaling llama3() {
  RopeScaling scaling;
  scaling.rope_type = "llama3", scaling.factor = 8, scaling.original_max_position_embeddings = 8192;
  scaling.low_freq_factor = 1, scaling.high_freq_factor = 4;
  return scaling;
}

RopeScaling yarn() {
  RopeScaling scaling;
  scaling.rope_type = "yarn", scaling.factor = 32, scaling.original_max_position_embeddings = 4096;
  return scaling;
}

RopeScaling longrope() {
  RopeScaling scaling;
  scaling.rope_type = "longrope", scaling.original_max_position_embeddings = 4096;
  scaling.max_position_embeddings = 131072;
  scaling.short_factor = {1, 1, 2, 2}, scaling.long_factor = {1, 3, 9, 27};
  return scaling;
}

TEST(CosSinTable, DefaultIsTheFormula) {
  const at::Tensor table = build_cos_sin(8, 5, 500.0);
  ASSERT_EQ(table.sizes(), at::IntArrayRef({5, 8}));
  ASSERT_EQ(table.scalar_type(), at::kFloat);
  for (int64_t position = 0; position < 5; ++position) {
    for (int64_t pair = 0; pair < 4; ++pair) {
      const double angle =
          static_cast<double>(position) * std::pow(500.0, -2.0 * static_cast<double>(pair) / 8);
      EXPECT_NEAR(table[position][pair].item<double>(), std::cos(angle), 1e-6);
      EXPECT_NEAR(table[position][pair + 4].item<double>(), std::sin(angle), 1e-6);
    }
  }
}

TEST(CosSinTable, ThetaOfTheScalingReplacesTheBase) {
  RopeScaling scaling;
  scaling.rope_theta = 777;
  EXPECT_TRUE(at::equal(build_cos_sin(8, 50, 10000, scaling), build_cos_sin(8, 50, 777)));
}

TEST(CosSinTable, AttentionFactorsMultiplyBothHalves) {
  const at::Tensor first_row = build_cos_sin(8, 2, 10000, yarn())[0];
  const float magnitude = static_cast<float>(0.1 * std::log(32.0) + 1);
  EXPECT_TRUE(at::equal(first_row.narrow(0, 0, 4), at::full({4}, magnitude)));
  const at::Tensor long_row = build_cos_sin(8, 2, 10000, longrope())[0];
  const double expected = std::sqrt(1 + std::log(32.0) / std::log(4096.0));
  EXPECT_NEAR(long_row[0].item<double>(), expected, 1e-6);
}

TEST(CosSinTable, LongropeChoosesByTheNumberOfRows) {
  const at::Tensor within = build_cos_sin(8, 4096, 10000, longrope());
  const at::Tensor beyond = build_cos_sin(8, 4097, 10000, longrope());
  EXPECT_TRUE(at::equal(within.select(1, 0), beyond.select(1, 0).narrow(0, 0, 4096)));
  EXPECT_FALSE(at::equal(within.select(1, 3), beyond.select(1, 3).narrow(0, 0, 4096)));
}

TEST(CosSinTable, FullWidthRepeatsTheColumnsOfAPair) {
  const at::Tensor half = build_cos_sin(4, 9, 10000, llama3());
  CosSinOptions options;
  options.full_width = true;
  const auto columns = [&](std::vector<int64_t> of) { return half.index_select(1, at::tensor(of)); };
  EXPECT_TRUE(at::equal(build_cos_sin(4, 9, 10000, llama3(), options), columns({0, 1, 0, 1, 2, 3, 2, 3})));
  options.is_neox = false;
  EXPECT_TRUE(at::equal(build_cos_sin(4, 9, 10000, llama3(), options), columns({0, 0, 1, 1, 2, 2, 3, 3})));
}

class CosSinTableOn : public testing::TestWithParam<c10::Device> {};

TEST_P(CosSinTableOn, SameBitsInEveryDtype) {
  KVROPE_SKIP_WITHOUT(GetParam());
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CosSinOptions options;
    options.dtype = dtype, options.device = GetParam();
    const at::Tensor table = build_cos_sin(64, 300, 500000, llama3(), options);
    EXPECT_EQ(table.device().type(), GetParam().type());
    EXPECT_TRUE(at::equal(table.cpu(), build_cos_sin(64, 300, 500000, llama3()).to(dtype)));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, CosSinTableOn, testing::ValuesIn(test_devices()),
                         [](const auto& info) { return info.param.is_cuda() ? "cuda" : "cpu"; });

struct BadScaling {
  std::string name, text;
  RopeScaling scaling;
};

BadScaling changed(std::string name, std::string text, RopeScaling scaling,
                   const std::function<void(RopeScaling&)>& change) {
  change(scaling);
  return {std::move(name), std::move(text), std::move(scaling)};
}

std::vector<BadScaling> bad_scalings() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  using S = RopeScaling;
  return {
      changed("unknown",
              "rope_type: expected default, linear, dynamic, yarn, llama3, longrope or proportional, "
              "got 'ntk'",
              yarn(), [](S& s) { s.rope_type = "ntk"; }),
      changed("theta", "rope_theta: expected a positive number, got -2", yarn(),
              [](S& s) { s.rope_theta = -2; }),
      changed("missing", "factor of rope_type 'yarn': expected a positive number, got none", yarn(),
              [](S& s) { s.factor.reset(); }),
      changed("value", "factor of rope_type 'llama3': expected a positive number, got nan", llama3(),
              [nan](S& s) { s.factor = nan; }),
      changed("order", "high_freq_factor of rope_type 'llama3': expected at least low_freq_factor 1, got 0.5",
              llama3(), [](S& s) { s.high_freq_factor = 0.5; }),
      changed("lengths", "long_factor of rope_type 'longrope': expected 4 numbers, rotary_dim / 2, got 3",
              longrope(),
              [](S& s) {
                s.long_factor = {1, 2, 3};
              }),
      changed("no_list", "short_factor of rope_type 'longrope': expected 4 numbers, rotary_dim / 2, got none",
              longrope(), [](S& s) { s.short_factor.reset(); }),
      changed("no_factor",
              "factor of rope_type 'longrope': expected a positive number, or "
              "max_position_embeddings to divide by original_max_position_embeddings, got neither",
              longrope(), [](S& s) { s.max_position_embeddings.reset(); }),
      changed("length_one",
              "original_max_position_embeddings of rope_type 'longrope': expected more than 1, got 1",
              longrope(), [](S& s) { s.original_max_position_embeddings = 1; }),
      changed("part", "partial_rotary_factor of rope_type 'proportional': expected at most 1, got 2", S(),
              [](S& s) { s.rope_type = "proportional", s.partial_rotary_factor = 2; }),
  };
}

class CosSinTableErrors : public testing::TestWithParam<BadScaling> {};

TEST_P(CosSinTableErrors, NameTheKeyAndWhatFits) {
  try {
    build_cos_sin(8, 5, 10000, GetParam().scaling);
    FAIL() << "nothing was thrown";
  } catch (const c10::ValueError& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()), "build_cos_sin: scaling: " + GetParam().text);
  }
}

INSTANTIATE_TEST_SUITE_P(Scalings, CosSinTableErrors, testing::ValuesIn(bad_scalings()),
                         [](const auto& info) { return info.param.name; });

template <typename Error>
void expect_thrown(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()), "build_cos_sin: " + text);
  }
}

TEST(CosSinTable, ArgumentsThatDoNotFit) {
  expect_thrown<c10::ValueError>([] { build_cos_sin(7, 5); },
                                 "rotary_dim: expected a positive even number, got 7");
  expect_thrown<c10::ValueError>([] { build_cos_sin(8, -1); },
                                 "max_position: expected a positive number, got -1");
  expect_thrown<c10::ValueError>([] { build_cos_sin(8, 5, 0); }, "base: expected a positive number, got 0");
  expect_thrown<c10::ValueError>([] { build_cos_sin(8, 5, 0.5, yarn()); },
                                 "base: expected more than 1 with rope_type 'yarn', got 0.5");
  RopeScaling dynamic;
  dynamic.rope_type = "dynamic", dynamic.factor = 2, dynamic.original_max_position_embeddings = 8;
  expect_thrown<c10::ValueError>([&] { build_cos_sin(2, 5, 10000, dynamic); },
                                 "rotary_dim: expected at least 4 with rope_type 'dynamic', got 2");
  CosSinOptions options;
  options.dtype = at::kDouble;
  expect_thrown<c10::TypeError>([&] { build_cos_sin(8, 5, 10000, {}, options); },
                                "dtype: expected float32 or float16 or bfloat16, got float64");
}

}  // namespace
}  // namespace kvrope
