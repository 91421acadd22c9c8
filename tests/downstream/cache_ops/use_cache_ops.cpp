// One decode step of two tokens, the second of them padding, on every kind of device there is.
#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <kvrope/arguments.h>
#include <kvrope/cos_sin_table.h>
#include <kvrope/fault.h>

#include <cstdio>
#include <cstdlib>

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Cosine 0 and sine 1 for every position: NeoX rotation takes the pair (a, b) to (-b, a).
at::Tensor quarter_turn(const at::Tensor& x) {
  const auto halves = x.chunk(2, -1);
  return at::cat({-halves[1], halves[0]}, -1);
}

void run_step(c10::Device device) {
  const auto floats = at::TensorOptions().dtype(at::kFloat).device(device);
  const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
  kvrope::FusedArguments args;
  args.q = at::arange(2 * 4 * 8, floats).view({2, 4, 8});
  args.k = at::arange(2 * 2 * 8, floats).view({2, 2, 8}) + 100;
  args.v = args.k + 100;
  args.key_cache = at::full({2, 4, 2, 8}, -7, floats);
  args.value_cache = at::full({2, 4, 2, 8}, -7, floats);
  args.slot_mapping = at::full({2}, 5, longs);
  args.slot_mapping[1] = -1;
  args.pos = at::arange(2, longs);
  args.cos_sin = at::cat({at::zeros({16, 4}, floats), at::ones({16, 4}, floats)}, 1);

  auto expected_keys = args.key_cache.clone(), expected_values = args.value_cache.clone();
  expected_keys[1][1] = quarter_turn(args.k[0]);
  expected_values[1][1] = args.v[0];
  const kvrope::FusedOutputs outputs = kvrope::fused_qk_rope_reshape_and_cache(args);
  kvrope::check(device);
  require(outputs.q_out.equal(quarter_turn(args.q).view({2, 32})), "q_out is rotated");
  require(outputs.k_out.equal(quarter_turn(args.k)), "k_out is rotated");
  require(args.key_cache.equal(expected_keys), "slot 5 of the key cache, and nothing else, is written");
  require(args.value_cache.equal(expected_values), "slot 5 of the value cache, and nothing else, is written");

  // The halves, one after the other.
  kvrope::RopeArguments rotation;
  rotation.q = args.q, rotation.k = args.k, rotation.pos = args.pos, rotation.cos_sin = args.cos_sin;
  const kvrope::RopeOutputs rotated = kvrope::rope(rotation);
  kvrope::ReshapeAndCacheArguments write;
  write.k = *rotated.k_out, write.v = args.v, write.slot_mapping = args.slot_mapping;
  write.key_cache = at::full_like(args.key_cache, -7), write.value_cache = at::full_like(args.key_cache, -7);
  kvrope::reshape_and_cache(write);
  require(rotated.q_out.equal(quarter_turn(args.q)), "rope rotates q");
  require(write.key_cache.equal(expected_keys), "reshape_and_cache writes the rotated k");
  require(write.value_cache.equal(expected_values), "reshape_and_cache writes v");

  kvrope::CosSinOptions options;
  options.device = device;
  const at::Tensor table = kvrope::build_cos_sin(8, 16, 10000, std::nullopt, options);
  require(table.equal(kvrope::build_cos_sin(8, 16).to(device)), "a table is the same on every device");

  args.pos = args.pos.to(at::kFloat);
  bool refused = false;
  try {
    kvrope::fused_qk_rope_reshape_and_cache(args);
  } catch (const c10::TypeError&) {
    refused = true;
  }
  require(refused, "a float pos is a c10::TypeError");
  std::printf("%s: passed\n", device.str().c_str());
}

}  // namespace

int main() {
  run_step(at::kCPU);
  if (at::hasCUDA()) run_step(c10::Device(at::kCUDA, 0));
}
