#include "runner/dump_case.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <stdexcept>

#include "runner/call_buffers.h"
#include "runner/npy_file.h"
#include "runner/oracle.h"
#include "runner/result_json.h"

namespace kvrope::regress {
namespace {

using Shape = std::vector<int64_t>;

std::vector<uint8_t> bytes_of(const at::Tensor& tensor) {
  at::Tensor host = tensor.cpu().contiguous();
  std::vector<uint8_t> bytes(static_cast<size_t>(host.nbytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), host.const_data_ptr(), bytes.size());
  return bytes;
}

class CaseDump {
 public:
  CaseDump(std::filesystem::path folder, const CaseSpec& spec, const MismatchedCall& call)
      : folder_(std::move(folder)), spec_(spec), call_(call) {
    std::filesystem::create_directories(folder_);
  }

  void write(const std::string& repeat_command) {
    write_inputs();
    write_memory();
    if (call_.outputs) {
      Oracle oracle(spec_, call_.data);
      write_outputs(oracle);
      write_caches(oracle);
    }
    Json index = {
        {"name", spec_.name}, {"file", spec_.file}, {"seed", spec_.seed}, {"repeat", repeat_command}};
    index.update(to_json(call_.result));
    index["tensors"] = tensors_;
    std::ofstream file(folder_ / "index.json");
    file << index.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    file.close();
    if (!file) throw std::runtime_error((folder_ / "index.json").string() + ": cannot be written");
  }

 private:
  template <class Value>
  void add(const std::string& name, const Shape& shape, const std::vector<Value>& values, const char* what) {
    write_npy(folder_ / (name + ".npy"), shape, values);
    tensors_.push_back({{"file", name + ".npy"}, {"shape", shape}, {"what", what}});
  }

  void add_integers(const std::string& name, const std::vector<int64_t>& values) {
    add(name, {static_cast<int64_t>(values.size())}, values, "input");
  }

  void add_positions(const RowPlan& plan) {
    std::vector<int64_t> all;
    for (const std::vector<int64_t>& axis : plan.pos) all.insert(all.end(), axis.begin(), axis.end());
    auto axes = static_cast<int64_t>(plan.pos.size()), count = static_cast<int64_t>(plan.pos.front().size());
    add("pos", axes == 1 ? Shape{count} : Shape{axes, count}, all, "input");
  }

  void write_inputs() {
    const CallData& data = call_.data;
    int64_t rows = spec_.kv_rows(), heads = spec_.kv_heads;
    add("q", {spec_.tokens(), spec_.q_heads, spec_.head_dim}, data.q, "input");
    add("k", {rows, heads, spec_.head_dim}, data.k, "input");
    add("v", {rows, heads, spec_.value_dim()}, data.v, "input");
    add("cos_sin", {data.plan.table_rows, spec_.table_width()}, data.cos_sin, "input");
    add_positions(data.plan);
    add_integers("slot_mapping", data.plan.slot_mapping);
    if (data.plan.offs) add_integers("offs", *data.plan.offs);
    if (data.plan.swa_slot_mapping) add_integers("swa_slot_mapping", *data.plan.swa_slot_mapping);
    auto add_scale = [&](const char* name, const std::optional<std::vector<float>>& scale) {
      if (scale) add(name, {static_cast<int64_t>(scale->size())}, *scale, "input");
    };
    add_scale("k_scale", data.k_scale);
    add_scale("v_scale", data.v_scale);
    add_scale("q_scale", data.q_scale);
    auto add_weight = [&](const char* name, const std::vector<float>& weight) {
      if (!weight.empty()) add(name, {spec_.head_dim}, weight, "input");
    };
    add_weight("q_weight", data.q_weight);
    add_weight("k_weight", data.k_weight);
  }

  void write_memory() {
    for (const Buffer& buffer : call_.buffers.buffers()) {
      after_.push_back(bytes_of(buffer.bytes));
      Shape shape = {static_cast<int64_t>(buffer.before.size())};
      add("memory_" + buffer.name + "_before", shape, buffer.before,
          "bytes of the buffer, guard bands included");
      add("memory_" + buffer.name + "_after", shape, after_.back(),
          "bytes of the buffer, guard bands included");
    }
  }

  float got(const View& view, int64_t element) const {
    const uint8_t* from = after_[view.buffer].data() + view.byte(element);
    return static_cast<float>(decode(view.format, load_bits(view.format, from)));
  }

  template <class WantAt>
  void add_rows(const std::string& name, const std::optional<View>& view, const at::Tensor& returned,
                const Shape& shape, WantAt want_at) {
    std::vector<double> want;
    std::vector<float> is;
    for (int64_t row = 0; row < shape[0]; ++row) {
      for (int64_t head = 0; head < shape[1]; ++head) {
        for (int64_t dim = 0; dim < shape[2]; ++dim) {
          want.push_back(want_at(row, head, dim).value);
          if (view) is.push_back(got(*view, view->place.at(row, head, dim)));
        }
      }
    }
    add(name + "_want", shape, want, "before it is rounded");
    if (view) {
      add(name + "_got", shape, is, "what was there after the call");
    } else if (returned.defined()) {  // whatever its shape
      at::Tensor values = returned.cpu().to(at::kFloat).contiguous();
      const float* first = values.const_data_ptr<float>();
      add(name + "_got", values.sizes().vec(), std::vector<float>(first, first + values.numel()),
          "what was returned");
    }
  }

  void write_outputs(const Oracle& oracle) {
    const FusedOutputs& outputs = *call_.outputs;
    const CallBuffers& buffers = call_.buffers;
    Shape query = {spec_.tokens(), spec_.q_heads, spec_.head_dim};
    auto of_q = [&](int64_t row, int64_t head, int64_t dim) { return oracle.q_out(row, head, dim); };
    auto of_k = [&](int64_t row, int64_t head, int64_t dim) { return oracle.k_out(row, head, dim); };
    auto zero = [](int64_t, int64_t, int64_t) { return Want{0.0}; };
    add_rows("q_out", buffers.q_out(), outputs.q_out, query, of_q);
    add_rows("k_out", buffers.k_out(), outputs.k_out, {spec_.kv_rows(), spec_.kv_heads, spec_.head_dim},
             of_k);
    if (outputs.zeros_out) add_rows("zeros_out", buffers.zeros_out(), *outputs.zeros_out, query, zero);
  }

  // The addressed slots alone: all others are to stay as they are, and the buffers' bytes show whether they
  // did.
  void write_caches(const Oracle& oracle) {
    std::map<int64_t, int64_t> row_of_slot;  // of several rows the last
    for (int64_t row = 0; row < spec_.slots_length(); ++row) {
      Destination to = oracle.destination_of(row);
      if (to.kind == Destination::Kind::slot) row_of_slot[to.slot] = row;
    }
    std::vector<int64_t> slots, rows;
    std::vector<double> key_want, value_want;
    std::vector<float> key_got, value_got;
    const CallBuffers& buffers = call_.buffers;
    for (const auto& [slot, row] : row_of_slot) {
      slots.push_back(slot);
      rows.push_back(row);
      for (int64_t head = 0; head < spec_.kv_heads; ++head) {
        for (int64_t dim = 0; dim < spec_.head_dim; ++dim) {
          key_want.push_back(oracle.cached_key(row, head, dim).value);
          key_got.push_back(got(buffers.key_cache(), buffers.key_element(slot, head, dim)));
        }
        for (int64_t dim = 0; dim < spec_.value_dim(); ++dim) {
          value_want.push_back(oracle.cached_value(row, head, dim).value);
          value_got.push_back(got(buffers.value_cache(), buffers.value_element(slot, head, dim)));
        }
      }
    }
    auto count = static_cast<int64_t>(slots.size());
    add("slots", {count}, slots, "slots that rows address, those of the two files below");
    add("rows_of_slots", {count}, rows, "the row of each");
    Shape key_shape = {count, spec_.kv_heads, spec_.head_dim},
          value_shape = {count, spec_.kv_heads, spec_.value_dim()};
    add("key_cache_want", key_shape, key_want, "of each slot, before it is rounded");
    add("key_cache_got", key_shape, key_got, "of each slot after the call");
    add("value_cache_want", value_shape, value_want, "of each slot, before it is rounded");
    add("value_cache_got", value_shape, value_got, "of each slot after the call");
  }

  std::filesystem::path folder_;
  const CaseSpec& spec_;
  const MismatchedCall& call_;
  std::vector<std::vector<uint8_t>> after_;  // of every buffer
  Json tensors_ = Json::array();
};

// A name that any file system takes, told apart by the number.
std::string folder_name(int64_t number, const std::string& case_name) {
  constexpr size_t kLongest = 120;
  std::string name = case_name.substr(0, kLongest);
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char letter) { return !std::isalnum(letter) && !std::strchr("-._=", letter); }, '_');
  return std::to_string(number) + "_" + name;
}

}  // namespace

void dump_case(const std::filesystem::path& parent, int64_t number, const CaseSpec& spec,
               const MismatchedCall& call, const std::string& repeat_command) {
  CaseDump(parent / folder_name(number, spec.name), spec, call).write(repeat_command);
}

}  // namespace kvrope::regress
