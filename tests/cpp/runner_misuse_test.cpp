// Mistakes of the caller that the key `misuse` makes: the operation names the tensor, and one that accepts
// them fails.
#include "runner/misuse.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "runner/case_file.h"
#include "runner/run_case.h"

namespace kvrope::regress {
namespace {

CaseSpec one_case(const std::string& keys) {
  std::string text = R"({"schema_version": 1, "cases": [{"id": "case", )" + keys + "}]}";
  return parse_case_file(text, "test.json").front();
}

CaseResult run(const CaseSpec& spec, const Operation& operation) {
  return run_case(spec, c10::kCPU, operation);
}

FusedOutputs accept(const FusedArguments& args) {
  return {at::Tensor(), args.k, args.key_cache, args.value_cache, args.zeros_out};
}

TEST(Misuse, IsRefusedByTheOperation) {
  const std::pair<const char*, const char*> mistakes[] = {
      {R"({"tensor": "v", "fault": "dtype"})", ": v: expected dtype .*float64"},
      {R"({"tensor": "pos", "fault": "rank"})", ": pos: expected shape .*got \\\\(1, 1, 5\\\\)"},
      {R"({"tensor": "k_out", "fault": "rows"})", ": k_out: expected shape .*got \\\\(6, 2, 64\\\\)"},
      {R"({"tensor": "slot_mapping", "fault": "device"})", ": slot_mapping: expected a tensor on cpu"},
      {R"({"tensor": "value_cache", "fault": "missing"})", ": value_cache: .*got none"},
      {R"({"tensor": "q_out", "fault": "self_overlap"})",
       ": q_out: expected a tensor without elements that share"},
      {R"({"tensor": "k_out", "fault": "shared", "with": "v"})",
       ": k_out: expected memory of its own, .* with v"}};
  for (const auto& [misuse, error] : mistakes) {
    std::string keys = std::string(R"("misuse": )") + misuse + R"(, "expect": {"error": ")" + error + "\"}";
    CaseSpec spec = one_case(keys);
    CaseResult result = run(spec, fused_qk_rope_reshape_and_cache);
    EXPECT_EQ(result.disposition, Disposition::rejected_as_expected) << misuse << ": " << result.message;
    EXPECT_EQ(run(spec, accept).disposition, Disposition::failed) << misuse;
  }
  CaseSpec query_scale = one_case(
      R"("q_out_dtype": "fp8_e4m3", "scales": {"q": [1, 2]}, "expect": {"error": ": q_scale: expected dtype"},
                  "misuse": {"tensor": "q_scale", "fault": "dtype"})");
  EXPECT_EQ(run(query_scale, fused_qk_rope_reshape_and_cache).disposition, Disposition::rejected_as_expected);
  CaseSpec absent =
      one_case(R"("misuse": {"tensor": "offs", "fault": "dtype"}, "expect": {"error": "offs"})");
  CaseResult result = run(absent, fused_qk_rope_reshape_and_cache);
  EXPECT_EQ(result.disposition, Disposition::error);
  EXPECT_EQ(result.message, "misuse: this call is not given a tensor offs");
}

}  // namespace
}  // namespace kvrope::regress
