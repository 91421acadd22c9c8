// The expression of --tag: names of tags joined by `and`, `or`, `not` and parentheses; a comma is `or`.
#pragma once

#include <string>
#include <vector>

namespace kvrope::regress {

class TagExpression {
 public:
  // Throws std::invalid_argument that says what is wrong where. An empty text takes everything.
  explicit TagExpression(const std::string& text);

  bool matches(const std::vector<std::string>& tags) const;

 private:
  // In the order of evaluation: a tag pushes whether it is there, an operator takes its operands off.
  struct Step {
    enum class Kind { tag, negation, conjunction, disjunction } kind;
    std::string tag;
  };
  friend class TagParser;
  std::vector<Step> steps_;
};

}  // namespace kvrope::regress
