//! Lists, a page at a time.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use super::problem::Problem;
use crate::domain::list;

const DEFAULT_LIMIT: u32 = 20;
const MAX_LIMIT: u32 = 100;

/// Which page of a list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PageQuery {
    /// How many at most, 20 when absent.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    after: Option<Uuid>,
    /// The newest first when absent.
    #[param(inline)]
    order: Option<Order>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Order {
    Asc,
    Desc,
}

/// One page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct List<T> {
    /// What was found.
    data: Vec<T>,
    /// True when there is more.
    has_more: bool,
    /// What `after` must be for the next page.
    next_cursor: Option<Uuid>,
}

impl PageQuery {
    pub(super) fn new(limit: Option<u32>, after: Option<Uuid>, order: Option<Order>) -> Self {
        Self { limit, after, order }
    }

    /// The page with one item more than is wanted, which tells whether there is more.
    pub(super) fn page(&self) -> Result<list::Page, Problem> {
        let limit = self.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            let detail = "limit must be from 1 to 100";
            return Err(
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "out_of_range", detail).at("/limit")
            );
        }
        let descending = !matches!(self.order, Some(Order::Asc));
        Ok(list::Page { limit: limit + 1, after: self.after, descending })
    }
}

impl<T> List<T> {
    /// A page of what was asked with [`PageQuery::page`].
    pub(super) fn of(mut data: Vec<T>, page: list::Page, id: impl Fn(&T) -> Uuid) -> Self {
        let wanted = page.limit as usize - 1;
        let has_more = data.len() > wanted;
        data.truncate(wanted);
        let next_cursor = data.last().map(id).filter(|_| has_more);
        Self { data, has_more, next_cursor }
    }

    /// A list that is always whole.
    pub(super) fn whole(data: Vec<T>) -> Self {
        Self { data, has_more: false, next_cursor: None }
    }
}
