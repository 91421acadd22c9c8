#include "overlap.h"
#include "text.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>

namespace kvrope {
namespace {

// Is there an x with 0 <= x[i] <= bound[i] and sum coefficient[i] * x[i] = target? The coefficients are the
// strides of the arrays in question, largest first: what the smaller ones can still reach leaves a few values
// for each x.
class BoundedSum {
 public:
  void add(int64_t coefficient, int64_t bound) {
    if (coefficient == 0 || bound == 0) return;
    for (Term& term : terms_) {
      if (term.coefficient == coefficient) {
        term.bound += bound;
        return;
      }
    }
    terms_.push_back({coefficient, bound, 0, 0});
  }

  bool reaches(int64_t target) {
    std::sort(terms_.begin(), terms_.end(),
              [](const Term& a, const Term& b) { return a.coefficient > b.coefficient; });
    int64_t largest = 0, divisor = 0;
    for (auto term = terms_.rbegin(); term != terms_.rend(); ++term) {
      largest += term->coefficient * term->bound;
      divisor = std::gcd(divisor, term->coefficient);
      term->largest_from_here = largest;
      term->divisor_from_here = divisor;
    }
    steps_left_ = kMaxSteps;
    return reaches_from(0, target);
  }

 private:
  struct Term {
    int64_t coefficient, bound;
    int64_t largest_from_here;  // of this term and all smaller ones together
    int64_t divisor_from_here;
  };

  // A search that takes too long, which no layout in use comes near, counts as reached: the call is refused.
  static constexpr int kMaxSteps = 1'000'000;

  bool reaches_from(size_t i, int64_t target) {
    if (target == 0 || --steps_left_ < 0) return true;
    if (i == terms_.size() || target < 0) return false;
    const Term& term = terms_[i];
    if (target > term.largest_from_here || target % term.divisor_from_here != 0) return false;
    const int64_t rest = i + 1 < terms_.size() ? terms_[i + 1].largest_from_here : 0;
    const int64_t first = std::max<int64_t>(0, (target - rest + term.coefficient - 1) / term.coefficient);
    const int64_t last = std::min(term.bound, target / term.coefficient);
    for (int64_t x = first; x <= last; ++x) {
      if (reaches_from(i + 1, target - x * term.coefficient)) return true;
    }
    return false;
  }

  c10::SmallVector<Term, 12> terms_;
  int steps_left_ = 0;
};

// A tensor of a call, its bytes and their end: most pairs of a call are told apart by these alone.
struct Placed {
  explicit Placed(const NamedTensor& named)
      : name(named.name), tensor(named.tensor), bytes(bytes_of(*tensor)), end(bytes.end()) {}

  const char* name;
  const at::Tensor* tensor;
  StridedBytes bytes;
  int64_t end;
};

using PlacedTensors = c10::SmallVector<Placed, 13>;

PlacedTensors place(c10::ArrayRef<NamedTensor> tensors) {
  PlacedTensors placed;
  for (const NamedTensor& named : tensors) placed.emplace_back(named);
  return placed;
}

bool are_apart(const Placed& a, const Placed& b) {
  return a.bytes.is_empty || b.bytes.is_empty || a.bytes.storage != b.bytes.storage ||
         a.bytes.begin >= b.end || b.bytes.begin >= a.end;
}

// Of two tensors that are not apart: whether they are one and the same view.
bool is_same_view(const Placed& a, const Placed& b) {
  if (a.bytes.begin != b.bytes.begin || a.tensor->scalar_type() != b.tensor->scalar_type()) return false;
  const at::IntArrayRef sizes = a.tensor->sizes(), a_strides = a.tensor->strides(),
                        b_strides = b.tensor->strides();
  if (sizes != b.tensor->sizes()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a_strides[i] != b_strides[i]) return false;
  }
  return true;
}

}  // namespace

int64_t StridedBytes::end() const {
  int64_t end = begin + item_size;
  for (const Axis& axis : axes) end += (axis.size - 1) * axis.stride;
  return end;
}

StridedBytes bytes_of(const at::Tensor& tensor) {
  StridedBytes bytes;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!impl->has_storage() || impl->has_symbolic_sizes_strides()) {
    bytes.is_empty = true;
    return bytes;
  }
  bytes.item_size = tensor.element_size();
  if (tensor.storage().device_type() == at::kMeta) {
    bytes.begin = tensor.storage_offset() * bytes.item_size;
    bytes.storage = tensor.storage().unsafeGetStorageImpl();
  } else {
    bytes.begin = reinterpret_cast<int64_t>(tensor.const_data_ptr());
  }
  bytes.is_empty = tensor.numel() == 0;
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1) bytes.axes.push_back({sizes[i], strides[i] * bytes.item_size});
  }
  std::sort(bytes.axes.begin(), bytes.axes.end(),
            [](const Axis& x, const Axis& y) { return x.stride < y.stride; });
  return bytes;
}

// Index of a, minus index of b mirrored to (size - 1 - index), plus a byte within each item: all terms
// positive.
bool share_a_byte(const StridedBytes& a, const StridedBytes& b) {
  if (a.is_empty || b.is_empty || a.storage != b.storage) return false;
  if (a.begin >= b.end() || b.begin >= a.end()) return false;
  BoundedSum sum;
  for (const Axis& axis : a.axes) sum.add(axis.stride, axis.size - 1);
  for (const Axis& axis : b.axes) sum.add(axis.stride, axis.size - 1);
  sum.add(1, a.item_size - 1);
  sum.add(1, b.item_size - 1);
  return sum.reaches(b.end() - 1 - a.begin);
}

bool overlaps_itself(const StridedBytes& a) {
  if (a.is_empty) return false;
  const auto& axes = a.axes;

  // The usual case: each stride passes over all that the smaller ones reach.
  int64_t extent = a.item_size;
  bool is_nested = true;
  for (const Axis& axis : axes) {
    is_nested &= axis.stride >= extent;
    extent += (axis.size - 1) * axis.stride;
  }
  if (is_nested) return false;

  // Two different indices: some axis `lead` differs by at least one, the others by anything. Item sizes
  // divide all strides, so that two elements share a byte only if they begin at the same one.
  for (size_t lead = 0; lead < axes.size(); ++lead) {
    BoundedSum sum;
    int64_t target = -axes[lead].stride;
    sum.add(axes[lead].stride, axes[lead].size - 2);
    for (size_t other = 0; other < axes.size(); ++other) {
      if (other == lead) continue;
      sum.add(axes[other].stride, 2 * (axes[other].size - 1));
      target += axes[other].stride * (axes[other].size - 1);
    }
    if (sum.reaches(target)) return true;
  }
  return false;
}

void require_no_overlap(const char* operation, c10::ArrayRef<NamedTensor> written,
                        c10::ArrayRef<NamedTensor> read, InPlacePairs in_place) {
  const PlacedTensors all_written = place(written), all_read = place(read);
  for (const Placed& w : all_written) {
    TORCH_CHECK_VALUE(
        !overlaps_itself(w.bytes),
        text(operation, ": ", w.name, ": expected a tensor without elements that share memory, got strides ",
             w.tensor->sym_strides(), " for shape ", w.tensor->sym_sizes()));
    for (const Placed* other = all_written.begin(); other != &w; ++other) {
      TORCH_CHECK_VALUE(are_apart(w, *other) || !share_a_byte(w.bytes, other->bytes),
                        text(operation, ": ", w.name,
                             ": expected memory of its own, got elements shared with ", other->name));
    }
    for (const Placed& r : all_read) {
      if (are_apart(w, r)) continue;
      const std::pair<std::string_view, std::string_view> names(w.name, r.name);
      const bool may_be_same = std::find(in_place.begin(), in_place.end(), names) != in_place.end();
      TORCH_CHECK_VALUE((may_be_same && is_same_view(w, r)) || !share_a_byte(w.bytes, r.bytes),
                        text(operation, ": ", w.name, ": expected memory of its own",
                             may_be_same ? " or exactly that of " : "", may_be_same ? r.name : "",
                             ", got elements shared with ", r.name));
    }
  }
}

}  // namespace kvrope
