// The runner makes its tables itself, in double arithmetic: they and build_cos_sin's are two witnesses.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cos_sin_table.h"
#include "runner/case_file.h"
#include "runner/rope_table.h"

namespace kvrope::regress {
namespace {

constexpr int64_t kRows = 700, kRotaryDim = 64;

// A scaling as the runner has it and as the builder has it, from one set of values.
struct Pair {
  std::string name;
  TableSpec table;
  kvrope::RopeScaling scaling;

  Pair(const std::string& rope_type, RopeScaling::Type type, double base) : name(rope_type) {
    table.base = base, table.scaling.type = type, scaling.rope_type = rope_type;
  }
  template <class Mine, class Builders, class Value>
  Pair with(Mine RopeScaling::*mine, Builders kvrope::RopeScaling::*builders, const Value& value) const {
    Pair changed = *this;
    changed.table.scaling.*mine = value, changed.scaling.*builders = value;
    return changed;
  }
  Pair called(const std::string& other) const {
    Pair renamed = *this;
    renamed.name = other;
    return renamed;
  }
};

// The key has the same name on both sides.
#define KEY(name) &RopeScaling::name, &kvrope::RopeScaling::name

Pair default_rule() {
  return Pair("default", RopeScaling::Type::none, 10000);
}

Pair linear() {
  return Pair("linear", RopeScaling::Type::linear, 1000000).with(KEY(factor), 8.0);
}

Pair llama3() {
  return Pair("llama3", RopeScaling::Type::llama3, 500000)
      .with(KEY(factor), 8.0)
      .with(KEY(low_freq_factor), 1.0)
      .with(KEY(high_freq_factor), 4.0)
      .with(KEY(original_max_position_embeddings), 4096.0);
}

Pair yarn() {
  return Pair("yarn", RopeScaling::Type::yarn, 150000)
      .with(KEY(factor), 32.0)
      .with(KEY(original_max_position_embeddings), 4096.0);
}

Pair dynamic() {
  return Pair("dynamic", RopeScaling::Type::dynamic, 10000)
      .with(KEY(factor), 2.5)
      .with(KEY(original_max_position_embeddings), 200.0);
}

Pair longrope() {
  std::vector<double> short_factor, long_factor;
  for (int i = 0; i < kRotaryDim / 2; ++i) {
    short_factor.push_back(1 + i / 64.0);
    long_factor.push_back(1 + i / 7.0);
  }
  return Pair("longrope", RopeScaling::Type::longrope, 10000)
      .with(KEY(short_factor), short_factor)
      .with(KEY(long_factor), long_factor)
      .with(KEY(original_max_position_embeddings), 200.0)
      .with(KEY(max_position_embeddings), 3200.0);
}

Pair proportional() {
  return Pair("proportional", RopeScaling::Type::proportional, 10000)
      .with(KEY(partial_rotary_factor), 0.3)
      .with(KEY(factor), 2.0);
}

std::vector<Pair> yarns() {
  return {
      yarn(),
      yarn().with(KEY(attention_factor), 1.0).with(KEY(truncate), false).with(KEY(beta_fast), 20.0),
      yarn().with(KEY(mscale), 1.3).with(KEY(mscale_all_dim), 0.7).called("yarn with both mscales"),
      yarn().with(KEY(mscale), 1.0).with(KEY(mscale_all_dim), 1.0).called("yarn with equal mscales"),
      yarn().with(KEY(mscale), 1.3).called("yarn with mscale alone"),
      yarn().with(KEY(factor), 1.0).called("yarn of factor 1"),
  };
}

std::vector<Pair> pairs() {
  std::vector<Pair> all = yarns();
  const std::vector<Pair> others = {
      default_rule(),
      linear(),
      llama3(),
      llama3().with(KEY(high_freq_factor), 1.0).called("llama3 with nothing between"),
      dynamic(),
      dynamic().with(KEY(original_max_position_embeddings), 4096.0).called("dynamic within the length"),
      longrope(),
      longrope().with(KEY(original_max_position_embeddings), 700.0).called("longrope within the length"),
      longrope().with(KEY(factor), 3.0).called("longrope with a factor"),
      longrope().with(KEY(factor), 1.0).called("longrope of factor 1"),
      longrope().with(KEY(attention_factor), 1.19).called("longrope with an attention factor"),
      proportional(),
      Pair("proportional", RopeScaling::Type::proportional, 10000).called("proportional of nothing"),
  };
  all.insert(all.end(), others.begin(), others.end());
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

double difference(const Pair& pair) {
  const at::Tensor runners = at::tensor(make_rope_table(case_of(pair), kRows)).view({kRows, kRotaryDim});
  const at::Tensor builders = build_cos_sin(kRotaryDim, kRows, pair.table.base, pair.scaling);
  return (runners - builders).abs().max().item<double>();
}

// The comparison above can fail, for each rule.
TEST(RunnerRopeTable, AnotherValueIsSeen) {
  Pair other_factor = linear(), other_stretch = dynamic(), other_part = proportional();
  other_factor.scaling.factor = 8.1;
  EXPECT_GT(difference(other_factor), 0.1);
  other_stretch.scaling.factor = 2.6;
  EXPECT_GT(difference(other_stretch), 0.1);
  other_part.scaling.partial_rotary_factor = 0.4;
  EXPECT_GT(difference(other_part), 0.1);
  Pair other_list = longrope(), other_length = longrope(), other_mscale = yarns()[2];
  other_list.scaling.long_factor->back() += 1;
  EXPECT_GT(difference(other_list), 1e-3);
  other_length.scaling.max_position_embeddings = 6400;
  EXPECT_GT(difference(other_length), 0.01);
  other_mscale.scaling.mscale_all_dim = 0.8;
  EXPECT_GT(difference(other_mscale), 0.01);
}

CaseSpec case_with_scaling(const std::string& scaling) {
  return parse_case_file(
             R"({"schema_version": 1, "cases": [{"id": "a", "table": {"scaling": )" + scaling + "}}]}",
             "cases.json")
      .at(0);
}

// What a model's config.json says in the older way gives the table that the newer key does.
TEST(RunnerRopeTable, OlderKeyOfTheType) {
  const std::string rest = R"("factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5, )"
                           R"("original_max_position_embeddings": 4096})";
  const std::vector<double> older = make_rope_table(case_with_scaling(R"({"type": "yarn", )" + rest), kRows);
  EXPECT_EQ(older, make_rope_table(case_with_scaling(R"({"rope_type": "yarn", )" + rest), kRows));
  EXPECT_EQ(older,
            make_rope_table(case_with_scaling(R"({"type": "linear", "rope_type": "yarn", )" + rest), kRows));
  EXPECT_NE(older, make_rope_table(case_with_scaling(R"({"type": "linear", )" + rest), kRows));
}

}  // namespace
}  // namespace kvrope::regress
