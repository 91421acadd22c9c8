// The runner makes its tables itself, in double arithmetic: they and build_cos_sin's are two witnesses.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cos_sin_table.h"
#include "runner/rope_table.h"

namespace kvrope::regress {
namespace {

constexpr int64_t kRows = 700, kRotaryDim = 64;

struct Pair {
  const char* name;
  TableSpec table;
  kvrope::RopeScaling scaling;
};

Pair make_pair_of(const char* name, RopeScaling::Type type, double factor, double base) {
  Pair pair = {name, {}, {}};
  pair.table.base = base;
  pair.table.scaling.type = type, pair.table.scaling.factor = factor;
  pair.scaling.rope_type = name, pair.scaling.factor = factor;
  if (type == RopeScaling::Type::llama3 || type == RopeScaling::Type::yarn) {
    pair.table.scaling.original_max_position_embeddings = 4096;
    pair.scaling.original_max_position_embeddings = 4096;
  }
  if (type == RopeScaling::Type::llama3) pair.scaling.low_freq_factor = 1, pair.scaling.high_freq_factor = 4;
  return pair;
}

std::vector<Pair> pairs() {
  std::vector<Pair> all = {make_pair_of("default", RopeScaling::Type::none, 1, 10000),
                           make_pair_of("linear", RopeScaling::Type::linear, 8, 1000000),
                           make_pair_of("llama3", RopeScaling::Type::llama3, 8, 500000),
                           make_pair_of("yarn", RopeScaling::Type::yarn, 32, 150000)};
  Pair other_yarn = make_pair_of("yarn", RopeScaling::Type::yarn, 40, 10000);
  other_yarn.table.scaling.attention_factor = 1, other_yarn.scaling.attention_factor = 1;
  other_yarn.table.scaling.truncate = false, other_yarn.scaling.truncate = false;
  other_yarn.table.scaling.beta_fast = 20, other_yarn.scaling.beta_fast = 20;
  all.push_back(other_yarn);
  return all;
}

CaseSpec case_of(const Pair& pair) {
  CaseSpec spec;
  spec.head_dim = kRotaryDim;
  spec.table = pair.table;
  return spec;
}

TEST(RunnerRopeTable, AgreesWithTheBuilder) {
  for (const Pair& pair : pairs()) {
    const std::vector<double> values = make_rope_table(case_of(pair), kRows);
    const at::Tensor runners = at::tensor(values).view({kRows, kRotaryDim});
    const at::Tensor builders = build_cos_sin(kRotaryDim, kRows, pair.table.base, pair.scaling);
    // The builder's angles are fp32, as models have them: the error grows with the angle.
    EXPECT_LT((runners - builders).abs().max().item<double>(), 2e-7 * kRows) << pair.name;
    EXPECT_LT((runners - builders)[1].abs().max().item<double>(), 1e-6) << pair.name;
  }
}

TEST(RunnerRopeTable, AnotherFactorIsSeen) {
  Pair pair = pairs()[1];
  pair.scaling.factor = 8.1;
  const at::Tensor runners = at::tensor(make_rope_table(case_of(pair), kRows)).view({kRows, kRotaryDim});
  const at::Tensor builders = build_cos_sin(kRotaryDim, kRows, pair.table.base, pair.scaling);
  EXPECT_GT((runners - builders).abs().max().item<double>(), 0.1);
}

}  // namespace
}  // namespace kvrope::regress
