// The memory of one call: every tensor as a view of a buffer of its own, with guard bands at both ends.
// Caches and outputs are filled with the canary, what lies around inputs is NaN, or for integers a value
// whose use would show.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "arguments.h"
#include "runner/call_data.h"
#include "runner/comparator.h"
#include "runner/placement.h"

namespace kvrope::regress {

struct Buffer {
  std::string name;
  BufferComparison::Before state;
  std::vector<uint8_t> before;  // its bytes before the call
  at::Tensor bytes;             // the same on the device
};

// Elements of a buffer as a tensor: `place` counts elements from the start of the buffer, guard band
// included.
struct View {
  size_t buffer;
  NumberFormat format;
  Placement place;

  int64_t byte(int64_t element) const { return element * bytes_of(format); }
};

class CallBuffers {
 public:
  CallBuffers(const CaseSpec& spec, const CallData& data, c10::Device device);

  const FusedArguments& arguments() const { return arguments_; }
  const std::vector<Buffer>& buffers() const { return buffers_; }

  // Outputs that the call was given, in place or not; nothing where the operation allocates them.
  const std::optional<View>& q_out() const { return q_out_; }
  const std::optional<View>& k_out() const { return k_out_; }
  const std::optional<View>& zeros_out() const { return zeros_out_; }
  const View& key_cache() const { return *key_cache_; }
  const View& value_cache() const { return *value_cache_; }
  // Element of the cache's buffer that an element of a slot lies at.
  int64_t key_element(int64_t slot, int64_t head, int64_t dim) const;
  int64_t value_element(int64_t slot, int64_t head, int64_t dim) const;

 private:
  View add(const std::string& name, NumberFormat format, Placement place, BufferComparison::Before state);
  View share(const View& view, Placement place) const;
  at::Tensor tensor(const View& view, std::optional<at::ScalarType> type = std::nullopt);
  at::Tensor integers(const std::string& name, const Placement& usual, const std::vector<int64_t>& values,
                      IndexDType dtype, int64_t around);
  std::optional<at::Tensor> scale(const std::string& name, const std::optional<Scale>& spec,
                                  const std::optional<std::vector<float>>& values);
  at::Tensor weight(const std::string& name, const std::vector<float>& values);
  void write(const View& view, const std::vector<float>& values);
  void add_inputs(const CallData& data);
  void add_indices(const RowPlan& plan);
  void add_outputs();
  void add_caches();
  void add_options(const CallData& data);

  const CaseSpec& spec_;
  c10::Device device_;
  CachePlacement caches_;
  FusedArguments arguments_;
  std::vector<Buffer> buffers_;
  std::optional<View> q_, k_, q_out_, k_out_, zeros_out_, key_cache_, value_cache_;
};

}  // namespace kvrope::regress
