//! Full-text search over the sections of documents, ranked by BM25 (Robertson and
//! Zaragoza, "The Probabilistic Relevance Framework", 2009).

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

/// The searchable sections of one knowledge base.
#[derive(Debug, Default)]
pub(super) struct Index {
    sections: Vec<Section>,
    /// In how many sections a term occurs.
    document_frequency: HashMap<String, u32>,
    total_terms: usize,
}

/// One section that holds a term of the query.
#[derive(Debug, Serialize, PartialEq)]
pub(super) struct Match<'a> {
    pub(super) document_id: &'a str,
    pub(super) title: &'a str,
    /// At most [`MAX_EXCERPT_CHARS`] characters around the rarest term found.
    pub(super) excerpt: String,
    /// Positive; to be compared within one answer only.
    pub(super) score: f64,
}

/// The text under one heading, the heading included.
#[derive(Debug)]
struct Section {
    document_id: String,
    title: String,
    text: String,
    terms: HashMap<String, Occurrences>,
    length: usize,
}

/// Where a term stands in a section.
#[derive(Debug)]
struct Occurrences {
    count: u32,
    /// Byte offset of the first.
    first: usize,
}

const MAX_EXCERPT_CHARS: usize = 300;
/// How much of an excerpt comes before the term found.
const LEAD_CHARS: usize = 60;

/// How fast further occurrences of a term stop counting.
const K1: f64 = 1.2;
/// How much a long section is held against it.
const B: f64 = 0.75;

impl Index {
    /// Adds a document, cut at its Markdown headings; returns the number of sections.
    pub(super) fn add(&mut self, document_id: &str, title: &str, text: &str) -> usize {
        let before = self.sections.len();
        for part in sections(text) {
            let section = Section::new(document_id, title, part);
            for term in section.terms.keys() {
                *self.document_frequency.entry(term.clone()).or_default() += 1;
            }
            self.total_terms += section.length;
            self.sections.push(section);
        }
        self.sections.len() - before
    }

    /// The best sections for a query, best first. A query of several words finds
    /// sections with any of them.
    pub(super) fn search(&self, query: &str, max_matches: usize) -> Vec<Match<'_>> {
        // In order and each once, so that equal questions add up in equal order.
        let weights: BTreeMap<String, f64> = terms(query)
            .filter_map(|(_, term)| self.weight(&term).map(|weight| (term, weight)))
            .collect();
        let mut ranked: Vec<(f64, &Section)> = self
            .sections
            .iter()
            .map(|section| (self.score(section, &weights), section))
            .filter(|(score, _)| *score > 0.0)
            .collect();
        // Stable: equal scores keep the order of the documents.
        ranked.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        ranked.truncate(max_matches);
        ranked.into_iter().map(|(score, section)| section.matched(score, &weights)).collect()
    }

    /// Inverse document frequency: rare terms weigh more. `None` for a term that no
    /// section holds.
    fn weight(&self, term: &str) -> Option<f64> {
        let holding = f64::from(*self.document_frequency.get(term)?);
        let all = as_f64(self.sections.len());
        Some((1.0 + (all - holding + 0.5) / (holding + 0.5)).ln())
    }

    fn score(&self, section: &Section, weights: &BTreeMap<String, f64>) -> f64 {
        let average = as_f64(self.total_terms) / as_f64(self.sections.len());
        let norm = K1 * (1.0 - B + B * as_f64(section.length) / average);
        let of_term = |(term, weight): (&String, &f64)| {
            let count = section.terms.get(term).map_or(0.0, |found| f64::from(found.count));
            weight * count * (K1 + 1.0) / (count + norm)
        };
        weights.iter().map(of_term).sum()
    }
}

impl Section {
    fn new(document_id: &str, title: &str, text: &str) -> Self {
        let mut found: HashMap<String, Occurrences> = HashMap::new();
        let mut length = 0;
        for (first, term) in terms(text) {
            found.entry(term).or_insert(Occurrences { count: 0, first }).count += 1;
            length += 1;
        }
        Self {
            document_id: document_id.to_owned(),
            title: title.to_owned(),
            text: text.to_owned(),
            terms: found,
            length,
        }
    }

    fn matched(&self, score: f64, weights: &BTreeMap<String, f64>) -> Match<'_> {
        let rarest = weights
            .iter()
            .filter_map(|(term, weight)| self.terms.get(term).map(|found| (weight, found.first)))
            .max_by(|(a, _), (b, _)| a.total_cmp(b));
        Match {
            document_id: &self.document_id,
            title: &self.title,
            excerpt: excerpt(&self.text, rarest.map_or(0, |(_, first)| first)),
            score: (score * 1000.0).round() / 1000.0,
        }
    }
}

/// Cuts Markdown before each heading. `#` inside a fenced block is none.
fn sections(text: &str) -> Vec<&str> {
    let mut cuts = vec![0];
    let mut fenced = false;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if line.starts_with("```") || line.starts_with("~~~") {
            fenced = !fenced;
        } else if !fenced && is_heading(line) {
            cuts.push(at);
        }
        at += line.len();
    }
    cuts.push(text.len());
    cuts.windows(2)
        .map(|cut| &text[cut[0]..cut[1]])
        .filter(|part| !part.trim().is_empty())
        .collect()
}

fn is_heading(line: &str) -> bool {
    let marks = line.chars().take_while(|c| *c == '#').count();
    (1..=6).contains(&marks) && line[marks..].starts_with([' ', '\t'])
}

/// The terms of a text with their byte offsets: runs of letters and digits in
/// lower case, and each character of a script that is written without spaces.
fn terms(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (start, first) = rest.find(|(_, c)| c.is_alphanumeric())?;
        let mut term: String = first.to_lowercase().collect();
        if !stands_alone(first) {
            let more = |c: char| c.is_alphanumeric() && !stands_alone(c);
            while let Some((_, c)) = rest.next_if(|(_, c)| more(*c)) {
                term.extend(c.to_lowercase());
            }
        }
        Some((start, term))
    })
}

/// Han, Hiragana, Katakana and Hangul syllables.
const fn stands_alone(c: char) -> bool {
    matches!(c,
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}'
        | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{323af}')
}

/// The text around a byte offset on one line, cut at characters, and in front at a
/// word where there is one.
fn excerpt(text: &str, at: usize) -> String {
    let lead = text[..at].char_indices().rev().take(LEAD_CHARS).last();
    let mut start = lead.map_or(at, |(start, _)| start);
    if start > 0 {
        start += text[start..at].find(char::is_whitespace).unwrap_or(0);
    }
    let words = text[start..].split_whitespace();
    let mut line = String::new();
    let mut left = MAX_EXCERPT_CHARS;
    for word in words {
        let gap = usize::from(!line.is_empty());
        if left <= gap {
            break;
        }
        if gap == 1 {
            line.push(' ');
        }
        left -= gap;
        let kept: String = word.chars().take(left).collect();
        left -= kept.chars().count();
        line.push_str(&kept);
    }
    line
}

/// Counts of a few documents are exact in a double.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
const fn as_f64(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_becomes_terms() {
        let found: Vec<_> = terms("Zürich’s 2 ÜBER-uns: 工具Gate 東京。").collect();
        let words: Vec<_> = found.iter().map(|(_, term)| term.as_str()).collect();
        assert_eq!(words, ["zürich", "s", "2", "über", "uns", "工", "具", "gate", "東", "京"]);
        assert_eq!(found[0].0, 0);
        assert_eq!(found[1].0, "Zürich’".len());
        assert_eq!(terms(" \u{2028}—…").count(), 0);
    }

    #[test]
    fn headings_cut_and_fences_do_not() {
        let text = "intro\n# One\na\n```sh\n# no heading\n```\n## Two\nb\n#three\n####### four\n";
        let parts = sections(text);
        assert_eq!(parts.len(), 3);
        assert_eq!(parts.concat(), text);
        assert!(parts[1].contains("no heading"));
        assert_eq!(sections("\n \n").len(), 0);
    }

    #[test]
    fn rare_terms_and_short_sections_rank_first() {
        let mut index = Index::default();
        let long = format!("# Long\ngate ticket {}", "filler ".repeat(200));
        index.add("long", "Long", &long);
        index.add("short", "Short", "# Short\ngate ticket");
        index.add("gate", "Gate", "# Gate\ngate gate gate");
        let ids = |query| -> Vec<&str> {
            index.search(query, 5).into_iter().map(|found| found.document_id).collect()
        };
        assert_eq!(ids("ticket"), ["short", "long"]);
        assert_eq!(ids("TICKET gate"), ["short", "long", "gate"]);
        assert_eq!(ids("gate")[0], "gate");
        assert!(ids("absent !").is_empty());
        assert!(ids("").is_empty());
        assert_eq!(index.search("gate", 2).len(), 2);
    }

    #[test]
    fn an_excerpt_is_short_and_holds_the_term() {
        let mut index = Index::default();
        let text = format!("# H\n{}needle {}", "été\n".repeat(500), "語".repeat(500));
        index.add("d", "D", &text);
        let found = index.search("needle", 5);
        assert!(found[0].excerpt.contains("needle"), "{}", found[0].excerpt);
        assert_eq!(found[0].excerpt.chars().count(), MAX_EXCERPT_CHARS);
        assert!(!found[0].excerpt.contains('\n'));
        assert!(found[0].excerpt.starts_with("été été"), "{}", found[0].excerpt);
        assert!(Index::default().search("needle", 5).is_empty());
    }
}
