#include "runner/check_call.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

namespace kvrope::regress {
namespace {

using Before = BufferComparison::Before;
using WantAt = std::function<Want(int64_t row, int64_t head, int64_t dim)>;

std::vector<uint8_t> download(const at::Tensor& bytes) {
  at::Tensor host = bytes.cpu().contiguous();
  std::vector<uint8_t> copy(static_cast<size_t>(host.nbytes()));
  if (!copy.empty()) std::memcpy(copy.data(), host.const_data_ptr(), copy.size());
  return copy;
}

std::vector<BufferComparison> download_all(const CallBuffers& buffers) {
  std::vector<BufferComparison> comparisons;
  for (const Buffer& buffer : buffers.buffers()) {
    comparisons.emplace_back(buffer.name, buffer.before, download(buffer.bytes), buffer.state);
  }
  return comparisons;
}

template <class Value>
std::string as_text(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// A returned tensor is the one that was given, or a new one of the right shape and dtype.
void check_returned(const std::string& name, const at::Tensor& got, const at::Tensor* given,
                    at::IntArrayRef shape, const at::Tensor& like, Findings& findings) {
  auto require = [&](bool holds, const std::string& what, const std::string& want, const std::string& is) {
    if (!holds) findings.add({name, "", std::nullopt, what + " " + want, is});
  };
  require(got.sizes() == shape, "shape", as_text(shape), as_text(got.sizes()));
  require(got.scalar_type() == like.scalar_type(), "dtype", as_text(like.scalar_type()),
          as_text(got.scalar_type()));
  require(got.device() == like.device(), "device", as_text(like.device()), as_text(got.device()));
  if (given)
    require(got.const_data_ptr() == given->const_data_ptr(), "the tensor", "that was given", "another");
}

class CallChecker {
 public:
  CallChecker(const CaseSpec& spec, const CallData& data, const CallBuffers& buffers,
              const FusedOutputs& outputs)
      : spec_(spec),
        oracle_(spec, data),
        buffers_(buffers),
        outputs_(outputs),
        capacity_(data.plan.num_blocks * spec.block_size),
        memory_(download_all(buffers)) {
    if (spec.match_unfused && !buffers.k_out()) allocated_k_out_ = download(outputs.k_out);
  }

  Findings check() {
    check_all_returned();
    if (findings_.mismatches > 0) return findings_;  // nothing below can be read safely
    int64_t tokens = spec_.tokens(), rows = spec_.kv_rows();
    check_rows("q_out", buffers_.q_out(), outputs_.q_out, tokens, spec_.q_heads,
               [&](int64_t row, int64_t head, int64_t dim) { return oracle_.q_out(row, head, dim); });
    check_rows("k_out", buffers_.k_out(), outputs_.k_out, rows, spec_.kv_heads,
               [&](int64_t row, int64_t head, int64_t dim) { return oracle_.k_out(row, head, dim); });
    if (outputs_.zeros_out) {
      check_rows("zeros_out", buffers_.zeros_out(), *outputs_.zeros_out, tokens, spec_.q_heads,
                 [](int64_t, int64_t, int64_t) { return Want{0.0}; });
    }
    check_caches();
    for (const BufferComparison& memory : memory_) memory.unchanged_elsewhere(findings_);
    return findings_;
  }

 private:
  void check_all_returned() {
    const FusedArguments& args = buffers_.arguments();
    int64_t tokens = spec_.tokens(), heads = spec_.q_heads, dims = spec_.head_dim;
    auto given = [](const std::optional<at::Tensor>& tensor) { return tensor ? &*tensor : nullptr; };
    const at::Tensor& q_like = spec_.q_out_dtype ? *args.q_out : args.q;
    check_returned("q_out", outputs_.q_out, given(args.q_out), {tokens, heads * dims}, q_like, findings_);
    check_returned("k_out", outputs_.k_out, given(args.k_out), args.k.sizes(), args.k, findings_);
    check_returned("key_cache", outputs_.key_cache, &args.key_cache, args.key_cache.sizes(), args.key_cache,
                   findings_);
    check_returned("value_cache", outputs_.value_cache, &args.value_cache, args.value_cache.sizes(),
                   args.value_cache, findings_);
    bool wants_zeros = spec_.outputs.zeros_out != OutputsSpec::Zeros::none;
    if (wants_zeros != outputs_.zeros_out.has_value()) {
      findings_.add(
          {"zeros_out", "", std::nullopt, wants_zeros ? "a tensor" : "none", wants_zeros ? "none" : "one"});
    } else if (wants_zeros) {
      check_returned("zeros_out", *outputs_.zeros_out, given(args.zeros_out), args.q.sizes(), args.q,
                     findings_);
    }
  }

  // A tensor that the operation allocated is read as it is; one that was given, in the buffer it lies in.
  void check_rows(const std::string& name, const std::optional<View>& view, const at::Tensor& returned,
                  int64_t rows, int64_t heads, const WantAt& want) {
    int64_t dims = spec_.head_dim;
    if (view) {
      check_elements(name, *view, memory_[view->buffer], rows, heads, want);
      return;
    }
    std::vector<uint8_t> bytes = download(returned);
    BufferComparison allocated(name, bytes, bytes, Before::holds_values);
    check_elements(name, {0, spec_.dtype, contiguous_rows(rows, heads, dims)}, allocated, rows, heads, want);
  }

  void check_elements(const std::string& name, const View& view, BufferComparison& memory, int64_t rows,
                      int64_t heads, const WantAt& want) {
    in_parallel(rows, heads * spec_.head_dim, [&](int64_t row, Findings& findings) {
      for (int64_t head = 0; head < heads; ++head) {
        for (int64_t dim = 0; dim < spec_.head_dim; ++dim) {
          auto where = [&] { return place(row, head, dim); };
          int64_t byte = view.byte(view.place.at(row, head, dim));
          memory.element(byte, view.format, want(row, head, dim), name, where, std::nullopt, findings);
        }
      }
    });
  }

  // check(i, findings) for 0 <= i < count, each of so many elements; the findings come in the order of i.
  template <class Check>
  void in_parallel(int64_t count, int64_t elements, Check check) {
    constexpr int64_t kElementsWorthAThread = 1 << 15;
    int64_t grain = std::max<int64_t>(1, kElementsWorthAThread / std::max<int64_t>(1, elements));
    std::map<int64_t, Findings> parts;  // by the first i
    std::mutex mutex;
    at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
      Findings part;
      for (int64_t i = begin; i < end; ++i) check(i, part);
      std::lock_guard lock(mutex);
      parts.emplace(begin, std::move(part));
    });
    for (const auto& [begin, part] : parts) findings_.append(part);
  }

  static std::string place(int64_t row, int64_t head, int64_t dim) {
    return "[row " + std::to_string(row) + ", head " + std::to_string(head) + ", dim " + std::to_string(dim) +
           "]";
  }

  // --- Caches

  void check_caches() {
    std::map<int64_t, std::vector<int64_t>> rows_of_slot;
    for (int64_t row = 0; row < spec_.slots_length(); ++row) {
      Destination to = oracle_.destination_of(row);
      if (to.kind == Destination::Kind::slot) rows_of_slot[to.slot].push_back(row);
    }
    std::vector<std::pair<int64_t, std::vector<int64_t>>> slots(rows_of_slot.begin(), rows_of_slot.end());
    in_parallel(static_cast<int64_t>(slots.size()), spec_.kv_heads * (spec_.head_dim + spec_.value_dim()),
                [&](int64_t i, Findings& findings) {
                  const auto& [slot, rows] = slots[static_cast<size_t>(i)];
                  check_slot(slot, row_in_slot(slot, rows), findings);
                });
    blame_stray_slots(rows_of_slot);
  }

  struct CacheElement {
    bool is_key;
    int64_t head, dim;
    int64_t byte;  // of the cache's buffer
  };

  const char* name_of(const CacheElement& element) const {
    return element.is_key ? "key_cache" : "value_cache";
  }
  const View& view_of(const CacheElement& element) const {
    return element.is_key ? buffers_.key_cache() : buffers_.value_cache();
  }
  const BufferComparison& memory_of(const CacheElement& element) const {
    return memory_[view_of(element).buffer];
  }
  BufferComparison& memory_of(const CacheElement& element) { return memory_[view_of(element).buffer]; }
  Want want_of(const CacheElement& element, int64_t row) const {
    if (!element.is_key) return oracle_.cached_value(row, element.head, element.dim);
    if (!spec_.match_unfused) return oracle_.cached_key(row, element.head, element.dim);
    return oracle_.cached_key_of(k_out_of(row, element.head, element.dim), element.head);
  }

  // What the call left in k_out, which has been compared itself.
  double k_out_of(int64_t row, int64_t head, int64_t dim) const {
    if (const std::optional<View>& view = buffers_.k_out()) {
      return memory_[view->buffer].value(view->byte(view->place.at(row, head, dim)), view->format);
    }
    int64_t element = (row * spec_.kv_heads + head) * spec_.head_dim + dim;
    return decode(spec_.dtype,
                  load_bits(spec_.dtype, allocated_k_out_.data() + element * bytes_of(spec_.dtype)));
  }

  template <class Visit>
  void for_each_element_of(int64_t slot, Visit visit) const {
    const View &keys = buffers_.key_cache(), &values = buffers_.value_cache();
    for (int64_t head = 0; head < spec_.kv_heads; ++head) {
      for (int64_t dim = 0; dim < spec_.head_dim; ++dim) {
        visit(CacheElement{true, head, dim, keys.byte(buffers_.key_element(slot, head, dim))});
      }
      for (int64_t dim = 0; dim < spec_.value_dim(); ++dim) {
        visit(CacheElement{false, head, dim, values.byte(buffers_.value_element(slot, head, dim))});
      }
    }
  }

  // Of several rows with one slot, the one that is there as a whole; the last where none is.
  int64_t row_in_slot(int64_t slot, const std::vector<int64_t>& rows) const {
    if (rows.size() == 1) return rows.front();
    for (int64_t row : rows) {
      bool is_there = true;
      for_each_element_of(slot, [&](const CacheElement& element) {
        const View& view = view_of(element);
        is_there = is_there && memory_of(element).is_right(element.byte, view.format, want_of(element, row));
      });
      if (is_there) return row;
    }
    return rows.back();
  }

  void check_slot(int64_t slot, int64_t row, Findings& findings) {
    for_each_element_of(slot, [&](const CacheElement& element) {
      auto where = [&] { return place(row, element.head, element.dim); };
      memory_of(element).element(element.byte, view_of(element).format, want_of(element, row),
                                 name_of(element), where, slot, findings);
    });
  }

  // Elements that changed in slots that no row addresses are told with their slot. What lies between slots,
  // in the guard bands and in padded pages, is told by its byte later.
  void blame_stray_slots(const std::map<int64_t, std::vector<int64_t>>& rows_of_slot) {
    bool is_clean = memory_[buffers_.key_cache().buffer].first_stray() < 0 &&
                    memory_[buffers_.value_cache().buffer].first_stray() < 0;
    if (is_clean) return;
    for (int64_t slot = 0; slot < capacity_; ++slot) {
      if (rows_of_slot.count(slot)) continue;
      for_each_element_of(slot, [&](const CacheElement& element) {
        auto where = [&] {
          return "[head " + std::to_string(element.head) + ", dim " + std::to_string(element.dim) + "]";
        };
        memory_of(element).unchanged_element(element.byte, view_of(element).format, name_of(element), where,
                                             slot, findings_);
      });
    }
  }

  const CaseSpec& spec_;
  Oracle oracle_;
  const CallBuffers& buffers_;
  const FusedOutputs& outputs_;
  int64_t capacity_;  // slots of the caches
  std::vector<BufferComparison> memory_;
  std::vector<uint8_t> allocated_k_out_;  // contiguous
  Findings findings_;
};

}  // namespace

Findings check_call(const CaseSpec& spec, const CallData& data, const CallBuffers& buffers,
                    const FusedOutputs& outputs) {
  return CallChecker(spec, data, buffers, outputs).check();
}

Findings check_untouched(const CallBuffers& buffers) {
  Findings findings;
  for (const BufferComparison& memory : download_all(buffers)) memory.unchanged_elsewhere(findings);
  return findings;
}

}  // namespace kvrope::regress
