//! Objects that `demo` creates and changes.

use podops_api::collaset::CollaSet;
use serde_json::{Value, json};

/// Name of the CollaSet.
pub const NAME: &str = "podops-demo";

/// The demo.
#[derive(Clone, Debug)]
pub struct Demo {
    /// Number of Pods.
    pub replicas: i32,
    /// Image of the Pods at first.
    pub image: String,
    /// Image that the Pods are updated to.
    pub updated_image: String,
}

impl Demo {
    /// The CollaSet to create.
    ///
    /// # Errors
    ///
    /// Never: its fields are those of a CollaSet.
    pub fn set(&self) -> serde_json::Result<CollaSet> {
        let labels = json!({ "app": NAME });
        serde_json::from_value(json!({
            "metadata": { "name": NAME },
            "spec": {
                "replicas": self.replicas,
                "selector": { "matchLabels": labels },
                "template": {
                    "metadata": { "labels": labels },
                    "spec": { "containers": [{ "name": "web", "image": self.image }] },
                },
                "updateStrategy": {
                    "podUpgradePolicy": "InPlaceIfPossible",
                    "rollingUpdate": { "maxUnavailable": "25%" },
                },
            },
        }))
    }

    /// The changes, each with its heading and its merge patch.
    #[must_use]
    pub fn steps(&self) -> Vec<(String, Value)> {
        let fewer = (self.replicas / 2).max(1);
        let mut steps = vec![
            (
                format!("update in place to {}, 25 % of the Pods at a time", self.updated_image),
                image(&self.updated_image),
            ),
            (format!("return to {}", self.image), image(&self.image)),
        ];
        if fewer < self.replicas {
            steps.push((
                format!("scale in from {} to {fewer} Pods", self.replicas),
                json!({ "spec": { "replicas": fewer } }),
            ));
        }
        steps
    }
}

fn image(image: &str) -> Value {
    let containers = json!([{ "name": "web", "image": image }]);
    json!({ "spec": { "template": { "spec": { "containers": containers } } } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_changes_the_set() {
        let demo = Demo { replicas: 4, image: "a:1".to_owned(), updated_image: "a:2".to_owned() };
        let set = serde_json::to_value(demo.set().unwrap()).unwrap();
        assert_eq!(set["spec"]["template"]["spec"]["containers"][0]["image"], "a:1");
        let steps = demo.steps();
        let images: Vec<&Value> = steps
            .iter()
            .map(|(_, patch)| &patch["spec"]["template"]["spec"]["containers"][0]["image"])
            .collect();
        assert_eq!(images, [&json!("a:2"), &json!("a:1"), &Value::Null]);
        assert_eq!(steps[2].1["spec"]["replicas"], 2);
    }
}
