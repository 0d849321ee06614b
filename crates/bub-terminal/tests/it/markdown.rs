//! Snapshots of a page with every kind of block, at several widths.

use bub_terminal::markdown::{Markdown, MarkdownStyle};

const PAGE: &str = "\
# Harvest

The **first** week was *dry*, ~~wet~~ and `warm`; see [the log](https://example.com/log) and 番茄 🍅.

## Beds

1. Tomatoes need water every day, and a stick that is longer than the plant will ever be.
   - red
   - yellow
2. Beans do not.

- [x] dig
- [ ] sow

> Quote of a neighbor
> who has a larger garden.

| Bed | Plants | Note |
|:----|-------:|:----:|
| north | 12 | shade |
| south | 240 | much sun in the afternoon |

```rust
fn water(bed: &mut Bed) { bed.moisture += 1; } // a long line of code stays as it is
```

---

<b>raw</b> html and a line\\
break.
";

fn render(width: usize, style: MarkdownStyle) -> String {
    let mut markdown = Markdown::new(width, style);
    let mut lines = markdown.push(PAGE);
    lines.extend(markdown.finish());
    let lines: Vec<String> = lines
        .iter()
        .map(|line| line.text().trim_end().to_owned())
        .collect();
    lines.join("\n")
}

// H-155
#[test]
fn every_block_is_laid_out_for_the_width_of_the_window() {
    for (name, width, style) in [
        ("page_at_80_columns", 80, MarkdownStyle::Styled),
        ("page_at_40_columns", 40, MarkdownStyle::Styled),
        ("page_plain", 60, MarkdownStyle::Plain),
    ] {
        insta::assert_snapshot!(name, render(width, style));
    }
}
